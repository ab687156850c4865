"""Prompts and texts: the same ids whichever thread tokenizes, and long work in none but its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway.prompt import read_prompt, read_text
from gateway.tiers import Target
from gateway.tokenizer import Tokenizer
from paceline.errors import InvalidArgument
from paceline.records import ModelIdentity
from paceline.v1 import gateway_pb2


class Watched:
    """A tokenizer that notes which threads work."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.threads: set[threading.Thread] = set()

    def encode(self, text: str) -> tuple[int, ...]:
        """See Tokenizer."""
        self.threads.add(threading.current_thread())
        return self._tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """See Tokenizer."""
        self.threads.add(threading.current_thread())
        return self._tokenizer.encode_chat(messages)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See Tokenizer."""
        self.threads.add(threading.current_thread())
        return self._tokenizer.decode(token_ids)


@pytest.fixture
def watched(bytes_tokenizer: Tokenizer) -> Watched:
    """The scripted target's tokenizer."""
    return Watched(bytes_tokenizer)


@pytest.fixture
def target(model: ModelIdentity, watched: Watched) -> Target:
    """The scripted target: 257 ids."""
    return Target(model, 8, frozenset(), cast(Any, watched))


def chat(num_messages: int, content: str) -> gateway_pb2.Prompt:
    """A prompt of equal messages."""
    message = gateway_pb2.ChatMessage(role="user", content=content)
    return gateway_pb2.Prompt(chat=gateway_pb2.Chat(messages=[message] * num_messages))


@pytest.mark.parametrize(
    ("prompt", "is_long"),
    [
        (gateway_pb2.Prompt(text="\u00e9"), False),
        (gateway_pb2.Prompt(text="\u00e9" * 20_000), True),
        (chat(1, "\u00e9"), False),
        (chat(1, "\u00e9" * 20_000), True),
        (chat(1_000, ""), True),
    ],
    ids=["text", "long text", "chat", "long chat", "many empty messages"],
)
async def test_prompts_of_any_length_tokenize_the_same(
    target: Target,
    watched: Watched,
    bytes_tokenizer: Tokenizer,
    prompt: gateway_pb2.Prompt,
    is_long: bool,
) -> None:
    """What takes long leaves the loop to the other generations, with the same result."""
    messages = [(message.role, message.content) for message in prompt.chat.messages]
    expected = (
        bytes_tokenizer.encode_chat(messages) if messages else bytes_tokenizer.encode(prompt.text)
    )
    assert expected == await read_prompt(prompt, target)
    assert is_long is (watched.threads != {threading.current_thread()})


@pytest.mark.parametrize("num_ids", [1, 20_000])
async def test_texts_of_any_length(
    target: Target, watched: Watched, bytes_tokenizer: Tokenizer, num_ids: int
) -> None:
    """The same for the way back; ids are checked first."""
    (token_id,) = bytes_tokenizer.encode("a")
    assert "a" * num_ids == await read_text([token_id] * num_ids, target)
    assert (num_ids == 20_000) is (watched.threads != {threading.current_thread()})
    watched.threads.clear()
    with pytest.raises(InvalidArgument, match=rf"token_ids\[{num_ids}\]"):
        await read_text([*[token_id] * num_ids, 257], target)
    assert set() == watched.threads
