"""Lets a target write: waves of sequences side by side, each token with the law it came from.

A wave depends on its number, the seed and the waves before its pool alone, so collecting goes on
where it stopped. The target is whatever runs steps; in each, every sequence that has not ended has
one row. Knows no network and no training.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from paceline.distill.prompts import Chat, Exchange, PromptWriter
from paceline.distill.shards import (
    NUM_TOP,
    Sample,
    read_chats,
    read_shard,
    shard_path,
    write_shard,
)
from paceline.engine.attention import CUDA_BLOCK_SIZE
from paceline.engine.step import ModelRunner, Span, Step

_WAVES_PER_POOL = 8
"""Waves that are cut from one pool of prompts, which is sorted by length: alike lengths share."""
_TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Of the sequences in turn: greedy text is what drafts are asked for most."""
_PREFILL_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """How a target is let write."""

    seed: int = 0
    batch_size: int = 32
    """Sequences of a wave."""
    max_prompt_tokens: int = 640
    """Longer prompts lose their beginning."""
    max_new_tokens: int = 160

    @property
    def max_length(self) -> int:
        """Longest sequence in tokens."""
        return self.max_prompt_tokens + self.max_new_tokens

    @property
    def block_size(self) -> int:
        """Tokens of a block, one for each sequence: whole pages of CUDA's kernel."""
        return -(-self.max_length // CUDA_BLOCK_SIZE) * CUDA_BLOCK_SIZE

    def within(self, max_length: int) -> CollectOptions:
        """The same for a model with a context of `max_length` tokens, which may be shorter."""
        num_new = min(self.max_new_tokens, max_length // 2)
        return replace(
            self,
            max_prompt_tokens=min(self.max_prompt_tokens, max_length - num_new),
            max_new_tokens=num_new,
        )


class Collector:
    """Writes shards."""

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: Sequence[int],
        writer: PromptWriter,
        options: CollectOptions,
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._writer = writer
        self._options = options
        runner.allocate(options.batch_size, options.block_size)

    def collect(self, directory: Path, wave: int) -> int:
        """Writes one wave's shard; returns the number of tokens that the target wrote."""
        pool, place = divmod(wave, _WAVES_PER_POOL)
        chats = self._order(self._pool(directory, pool), wave)[place]
        prompts = [self._encode(chat) for chat in chats]
        samples = self._write(prompts, wave)
        write_shard(shard_path(directory, wave), samples, chats)
        return sum(len(one.token_ids) - one.prompt_length for one in samples)

    def _pool(self, directory: Path, pool: int) -> list[Chat]:
        """The chats of a pool, by length of their prompts."""
        earlier = []
        for wave in range(max(0, (pool - 1) * _WAVES_PER_POOL), pool * _WAVES_PER_POOL):
            path = shard_path(directory, wave)
            for chat, sample in zip(read_chats(path), read_shard(path), strict=True):
                output = sample.token_ids[sample.prompt_length :]
                answer = self._tokenizer.decode(output, skip_special_tokens=True)
                earlier.append(Exchange(tuple(chat), answer))
        count = _WAVES_PER_POOL * self._options.batch_size
        return sorted(self._writer.write(pool, count, earlier), key=_num_characters)

    def _order(self, chats: list[Chat], wave: int) -> list[list[Chat]]:
        """Cuts a pool into waves, and puts neither waves nor their sequences in order of length."""
        size = self._options.batch_size
        waves = [chats[start : start + size] for start in range(0, len(chats), size)]
        generator = random.Random(wave // _WAVES_PER_POOL)
        generator.shuffle(waves)
        for one in waves:
            generator.shuffle(one)
        return waves

    def _encode(self, chat: Chat) -> list[int]:
        """The ids of a chat, or of its text; both begin as the gateway's prompts do."""
        if self._tokenizer.chat_template:
            ids: list[int] = self._tokenizer(self._render(chat), add_special_tokens=False).input_ids
        else:
            text = "\n\n".join(message["content"] for message in chat) + "\n\n"
            ids = self._tokenizer(text).input_ids
            bos = self._tokenizer.bos_token_id
            if bos is not None and ids[:2] == [bos, bos]:  # the text spells it out, too
                ids = ids[1:]
        return ids[-self._options.max_prompt_tokens :]

    def _render(self, chat: Chat) -> str:
        try:
            return self._apply_template(chat)
        except TemplateError:
            if chat[0]["role"] != "system":
                raise
            # Some templates know no system message; the text itself can still be asked.
            return self._apply_template(_fold_system(chat))

    def _apply_template(self, chat: Chat) -> str:
        text: str = self._tokenizer.apply_chat_template(
            list(chat), tokenize=False, add_generation_prompt=True
        )
        return text

    def _write(self, prompts: list[list[int]], wave: int) -> list[Sample]:
        sequences = [
            _Sequence(ids, len(ids), _TEMPERATURES[index % len(_TEMPERATURES)])
            for index, ids in enumerate(prompts)
        ]
        generator = torch.Generator().manual_seed(self._options.seed << 32 | wave)
        logits = [
            self._run(sequences[first : first + _PREFILL_SEQUENCES], first)
            for first in range(0, len(sequences), _PREFILL_SEQUENCES)
        ]
        running = list(sequences)
        self._draw(running, torch.cat(logits), generator)
        while running := self._close_gaps(running):
            self._draw(running, self._run(running), generator)
        return [one.sample() for one in sequences]

    def _run(self, sequences: Sequence[_Sequence], first_block: int = 0) -> torch.Tensor:
        """Runs what is new in some sequences, which hold blocks side by side; logits [B, V]."""
        spans = tuple(
            Span(
                tuple(one.token_ids[one.num_cached :]),
                one.num_cached,
                (block,),
                1,
                one.prompt_length,
            )
            for block, one in enumerate(sequences, start=first_block)
        )
        for one in sequences:
            one.num_cached = len(one.token_ids)
        return self._runner.run(Step(spans, self._options.block_size))

    def _draw(
        self, sequences: Sequence[_Sequence], logits: torch.Tensor, generator: torch.Generator
    ) -> None:
        """Draws each sequence's next token from the likeliest of its law, and keeps those."""
        top, ids = logits.topk(min(NUM_TOP, logits.shape[1]), dim=1)
        log_probs = (top - logits.logsumexp(dim=1, keepdim=True)).cpu()
        ids = ids.cpu()
        temperatures = torch.tensor([[one.temperature or 1.0] for one in sequences])
        drawn = torch.multinomial((log_probs / temperatures).softmax(dim=1), 1, generator=generator)
        for index, one in enumerate(sequences):
            place = int(drawn[index]) if one.temperature else 0
            one.token_ids.append(int(ids[index, place]))
            one.laws.append((ids[index].int(), log_probs[index].half()))

    def _close_gaps(self, running: list[_Sequence]) -> list[_Sequence]:
        """Moves the last sequences into the blocks of those that have ended."""
        running = list(running)
        for index in reversed(range(len(running))):
            if self._has_ended(running[index]):
                last = running.pop()
                if index < len(running):
                    self._runner.copy_blocks([(len(running), index)])
                    running[index] = last
        return running

    def _has_ended(self, one: _Sequence) -> bool:
        num_new = len(one.token_ids) - one.prompt_length
        return num_new >= self._options.max_new_tokens or one.token_ids[-1] in self._eos_token_ids


class _Sequence:
    """One sequence while it is written."""

    def __init__(self, token_ids: list[int], prompt_length: int, temperature: float) -> None:
        self.token_ids = token_ids
        self.prompt_length = prompt_length
        self.temperature = temperature
        self.num_cached = 0
        self.laws: list[tuple[torch.Tensor, torch.Tensor]] = []

    def sample(self) -> Sample:
        ids, log_probs = zip(*self.laws, strict=True)
        return Sample(
            torch.tensor(self.token_ids),
            self.prompt_length,
            torch.stack(ids),
            torch.stack(log_probs),
        )


def _fold_system(chat: Chat) -> Chat:
    """Puts the system message in front of the user's first one."""
    system, first, *rest = chat
    content = f"{system['content']}\n\n{first['content']}"
    return ({**first, "content": content}, *rest)


def _num_characters(chat: Chat) -> int:
    return sum(len(message["content"]) for message in chat)
