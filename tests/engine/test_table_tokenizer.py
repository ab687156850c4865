"""A table's tokenizer loads like any other, and one token is one character."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from paceline.engine.table_model import parse_table
from paceline.engine.table_tokenizer import build_tokenizer

ALPHABET = "ab \n漢é."


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerBase:
    """Saved and loaded again."""
    law = [1.0] + [0.0] * (len(ALPHABET) - 1)
    build_tokenizer(
        parse_table({"alphabet": ALPHABET, "eos": ".", "default": law})
    ).save_pretrained(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("text", ["", "a", "ab ba", "  \n\na", "漢é漢", ALPHABET])
def test_round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Ids are places in the alphabet, nothing is added, and decoding concatenates."""
    ids = tokenizer(text)["input_ids"]
    assert list(map(ALPHABET.index, text)) == ids
    assert text == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["z", "abz", "a\tb", "A"])
def test_unknown_character_raises(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """A character outside the alphabet is an error, not some other token."""
    with pytest.raises(Exception, match="WordLevel error"):
        tokenizer(text)


def test_specials(tokenizer: PreTrainedTokenizerBase) -> None:
    """The end is a character of the alphabet; there is no beginning."""
    assert ALPHABET.index(".") == tokenizer.eos_token_id
    assert tokenizer.bos_token is None
    assert len(ALPHABET) == len(tokenizer)


def test_chat_form_is_the_raw_content(tokenizer: PreTrainedTokenizerBase) -> None:
    """In chat form the contents are the prompt, one after the other."""
    messages = [{"role": "system", "content": "a "}, {"role": "user", "content": "b"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "a b" == text
