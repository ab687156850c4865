"""Prompts to ids and ids to text, with the tokenizer of the target that will serve them.

Long work leaves the event loop, which all generations share, to a thread. What is asked for behind
a prompt is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.tiers import Target
from paceline.errors import InvalidArgument
from paceline.records import ModelIdentity
from paceline.v1 import gateway_pb2

T = TypeVar("T")
# Tokenizing holds the event loop; above this length a thread does it. A message of a chat costs as
# much as so many characters, however short it is.
_LONG_TEXT_CHARACTERS = 10_000
_MESSAGE_CHARACTERS = 100
_LONG_TOKEN_IDS = 10_000


async def read_prompt(prompt: gateway_pb2.Prompt, target: Target) -> tuple[int, ...]:
    """The ids of a prompt in any of its forms, at least one.

    Raises:
        InvalidArgument: there is none, or it cannot be tokenized, or it holds unknown ids.
    """
    tokenizer = target.tokenizer
    match prompt.WhichOneof("form"):
        case "text":
            field, empty = "text", "is empty, and the tokenizer begins no text by itself"
            is_long = len(prompt.text) > _LONG_TEXT_CHARACTERS
            token_ids = await _do(is_long, lambda: tokenizer.encode(prompt.text))
        case "chat":
            field, empty = "chat", "is empty as the chat template renders it"
            messages = [(message.role, message.content) for message in prompt.chat.messages]
            num_characters = sum(len(content) for _, content in messages)
            num_characters += _MESSAGE_CHARACTERS * len(messages)
            is_long = num_characters > _LONG_TEXT_CHARACTERS
            token_ids = await _do(is_long, lambda: tokenizer.encode_chat(messages))
        case "token_ids":
            field, empty = "token_ids", "must hold at least one id"
            token_ids = tuple(prompt.token_ids.token_ids)
            check_ids(token_ids, target.model, field="prompt.token_ids")
        case _:
            raise InvalidArgument("prompt", "must be set")
    if not token_ids:
        raise InvalidArgument(f"prompt.{field}", empty, reason="EMPTY_PROMPT")
    return token_ids


async def read_text(token_ids: Sequence[int], target: Target) -> str:
    """The text of ids.

    Raises:
        InvalidArgument: one of them is outside the vocabulary.
    """

    def text() -> str:
        check_ids(token_ids, target.model, field="token_ids")
        return target.tokenizer.decode(token_ids)

    return await _do(len(token_ids) > _LONG_TOKEN_IDS, text)


async def _do(is_long: bool, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if is_long else work()


def check_ids(token_ids: Sequence[int], model: ModelIdentity, *, field: str) -> None:
    """Refuses ids outside the vocabulary.

    Raises:
        InvalidArgument: one of them is.
    """
    if max(token_ids, default=0) < model.vocabulary_size:
        return
    index = next(i for i, t in enumerate(token_ids) if t >= model.vocabulary_size)
    raise InvalidArgument(
        f"{field}[{index}]",
        f"must be under the vocabulary size of {model.vocabulary_size}, got {token_ids[index]}",
    )
