"""The tokenizer's archive: what is inside, that it is the same each time, and the fingerprint."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from paceline.engine.tokenizer_archive import fingerprint_tokenizer, pack, vocabulary_size
from paceline.errors import FailedPrecondition


@pytest.fixture
def copy(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The tiny tokenizer, loaded from files of its own, free to change."""
    tiny_tokenizer.save_pretrained(tmp_path / "copy")
    return AutoTokenizer.from_pretrained(tmp_path / "copy")


def test_archive_loads_as_the_same_tokenizer(tmp_path: Path, copy: PreTrainedTokenizerFast) -> None:
    """Unpacked files make a tokenizer with the same ids, ends and chat template."""
    copy.chat_template = "{{ messages[0]['content'] }}"
    with zipfile.ZipFile(io.BytesIO(pack(copy))) as archive:
        archive.extractall(tmp_path / "unpacked")
    unpacked = AutoTokenizer.from_pretrained(tmp_path / "unpacked")
    text = "<s>abri ctz</s>"
    assert copy(text)["input_ids"] == unpacked(text)["input_ids"]
    assert copy.eos_token_id == unpacked.eos_token_id
    assert copy.chat_template == unpacked.chat_template
    assert fingerprint_tokenizer(copy) == fingerprint_tokenizer(unpacked)


def test_archive_is_deterministic(
    tiny_tokenizer: PreTrainedTokenizerFast, copy: PreTrainedTokenizerFast
) -> None:
    """Equal tokenizers make equal bytes: sorted names, fixed times, no compression."""
    packed = pack(tiny_tokenizer)
    assert packed == pack(tiny_tokenizer)
    assert packed == pack(copy)
    entries = zipfile.ZipFile(io.BytesIO(packed)).infolist()
    assert sorted(entry.filename for entry in entries) == [entry.filename for entry in entries]
    assert {(1980, 1, 1, 0, 0, 0)} == {entry.date_time for entry in entries}
    assert {zipfile.ZIP_STORED} == {entry.compress_type for entry in entries}


def test_tokenizer_without_json_is_refused() -> None:
    """A tokenizer that exists in Python alone cannot be handed to the gateway."""
    with pytest.raises(FailedPrecondition, match="ByT5Tokenizer"):
        pack(ByT5Tokenizer())


def test_fingerprint_is_of_ids_and_tokens(copy: PreTrainedTokenizerFast) -> None:
    """B46: one more token makes another fingerprint, another chat template does not."""
    before = fingerprint_tokenizer(copy)
    copy.chat_template = "anything"
    assert before == fingerprint_tokenizer(copy)
    copy.add_tokens([AddedToken("<|more|>", special=True)])
    assert before != fingerprint_tokenizer(copy)


def test_fingerprint_tells_swapped_ids() -> None:
    """B46: the same tokens under other ids mean something else."""

    class Swapped:
        def __init__(self, **vocabulary: int) -> None:
            self.get_vocab = lambda: vocabulary

    forward, backward = Swapped(a=0, b=1), Swapped(a=1, b=0)
    assert fingerprint_tokenizer(forward) == fingerprint_tokenizer(Swapped(b=1, a=0))
    assert fingerprint_tokenizer(forward) != fingerprint_tokenizer(backward)


def test_vocabulary_size_counts_added_tokens(copy: PreTrainedTokenizerFast) -> None:
    """B44: the vocabulary is one more than the largest id, added tokens included."""
    assert 500 == vocabulary_size(copy)
    copy.add_tokens(["<|more|>"])
    assert 501 == vocabulary_size(copy)
