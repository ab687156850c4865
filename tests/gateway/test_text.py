"""Text piece by piece: the pieces add up to the text of all ids, whatever the blocks were."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from gateway.text import TextDecoder
from gateway.tokenizer import Tokenizer

EMOJI = "🙂é漢🏳️‍🌈"


def pieces(decode: object, token_ids: Sequence[int], size: int) -> list[str]:
    """The pieces of ids fed in blocks of `size`, with what the end flushes."""
    assert callable(decode)
    decoder = TextDecoder(decode)
    fed = [decoder.feed(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
    return [*fed, decoder.flush()]


@pytest.fixture(scope="module")
def spm() -> Backend:
    """SPM: words with a leading mark for the space, byte fallback, first space stripped."""
    words = ["▁", "▁▁", "▁a", "▁word", "▁.", ".", "\n", "s", "▁the", "▁list"]
    vocabulary = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}}
    vocabulary |= {word: len(vocabulary) + i for i, word in enumerate(words)}
    backend = Backend(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["</s>"])
    return backend


def token_id(backend: Backend, token: str) -> int:
    """The id of a token that the vocabulary has."""
    found = backend.token_to_id(token)
    assert found is not None
    return found


@pytest.mark.parametrize("size", range(1, 7))
def test_a_character_split_over_tokens(bytes_tokenizer: Tokenizer, size: int) -> None:
    """B77: bytes of emoji, one token each, in blocks of any size: no replacement mark anywhere."""
    fed = pieces(bytes_tokenizer.decode, bytes_tokenizer.encode(EMOJI), size)
    assert EMOJI == "".join(fed)
    assert not any("\ufffd" in piece for piece in fed)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_spaces_survive_blocks(spm: Backend, size: int) -> None:
    """B79: leading space, double spaces, newline with indent and ' .' over 200 words."""
    draws = random.Random(0)
    known = ["▁", "▁▁", "▁a", "▁word", "▁.", ".", "\n", "s", "▁the", "▁list"]
    token_ids = [token_id(spm, token) for token in draws.choices(known, k=200)]
    fed = pieces(lambda ids: spm.decode(list(ids)), token_ids, size)
    assert spm.decode(token_ids) == "".join(fed)
    assert "  " in "".join(fed) and "\n " in "".join(fed) and " ." in "".join(fed)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_characters_from_byte_fallback(spm: Backend, size: int) -> None:
    """B77: bytes of a fallback run, of which an unfinished part decodes to one mark per byte."""
    token_ids = [token_id(spm, "▁a")]
    for character in "漢🙂":
        token_ids += [byte + 1 for byte in character.encode()] + [token_id(spm, "▁word")]
    fed = pieces(lambda ids: spm.decode(list(ids)), token_ids, size)
    assert "a漢 word🙂 word" == "".join(fed)
    assert not any("\ufffd" in piece for piece in fed)


@pytest.mark.parametrize("num_before", range(40))
def test_a_special_token_in_the_middle_keeps_the_space(spm: Backend, num_before: int) -> None:
    """A token without text of its own is no context: the space after it must not vanish."""
    word, end = token_id(spm, "▁word"), token_id(spm, "</s>")
    token_ids = [word] * num_before + [end, word, end, end, word]
    fed = pieces(lambda ids: spm.decode(list(ids)), token_ids, 1)
    assert spm.decode(token_ids) == "".join(fed)


def test_an_unfinished_character_is_flushed_as_the_tokenizer_gives_it(
    bytes_tokenizer: Tokenizer,
) -> None:
    """At the end a cut character shows as decoding everything at once shows it."""
    token_ids = bytes_tokenizer.encode("ok🙂")[:-1]
    fed = pieces(bytes_tokenizer.decode, token_ids, 1)
    assert ["o", "k", "", "", "", "\ufffd"] == fed
    assert bytes_tokenizer.decode(token_ids) == "".join(fed)


@pytest.mark.parametrize("size", [1, 4])
def test_any_bytes_add_up(bytes_tokenizer: Tokenizer, size: int) -> None:
    """Random ids, most of them no text at all: the pieces still are the whole."""
    draws = random.Random(2)
    for _ in range(50):
        token_ids = draws.choices(range(256), k=80)
        fed = pieces(bytes_tokenizer.decode, token_ids, size)
        assert bytes_tokenizer.decode(token_ids) == "".join(fed)


def test_the_window_stays_short(bytes_tokenizer: Tokenizer) -> None:
    """A long output is not decoded again and again from its start."""
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return bytes_tokenizer.decode(token_ids)

    assert 1000 == len("".join(pieces(decode, bytes_tokenizer.encode("x" * 1000), 1)))
    assert longest < 40
