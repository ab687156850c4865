"""What a target writes, and the laws beside it, are those that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2 import TemplateError
from tokenizers import processors
from transformers import AutoTokenizer

from paceline.distill.collect import CollectOptions, Collector
from paceline.distill.prompts import Chat, PromptWriter
from paceline.distill.shards import read_shard, shard_path
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder

OPTIONS = CollectOptions(batch_size=6, max_prompt_tokens=20, max_new_tokens=10)
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' or m['content'] == 'no' %}"
    "{{ raise_exception('not served') }}{% endif %}"
    "{{ m['role'][0] + m['content'] }}{% endfor %}"
)


@pytest.fixture
def collector(target: Path, network: Any) -> Collector:
    """The tiny target, in float32; byte 258 - 1 and id 40 end a text."""
    runner = LeanRunner(take_decoder(network), 258)
    tokenizer = AutoTokenizer.from_pretrained(target)
    return Collector(runner, tokenizer, (40, 100, 257), PromptWriter(0), OPTIONS)


@torch.inference_mode()
def test_laws_are_the_targets(
    collector: Collector, target: Path, tmp_path: Path, say_laws: Any
) -> None:
    """Behind every token, whatever sequences ended beside it; greedy ones take the likeliest."""
    from transformers import AutoModelForCausalLM

    stock = AutoModelForCausalLM.from_pretrained(target).eval()
    ended_early = 0
    for wave in range(3):
        num_tokens = collector.collect(tmp_path, wave)
        samples = read_shard(shard_path(tmp_path, wave))
        assert num_tokens == sum(len(one.top_ids) for one in samples)
        for index, one in enumerate(samples):
            [expected] = say_laws(stock, [one.token_ids.tolist()], one.prompt_length)
            error = (expected.top_log_probs.float() - one.top_log_probs.float()).abs().max()
            assert error < 0.02
            output = one.token_ids[one.prompt_length :].tolist()
            assert len(output) <= OPTIONS.max_new_tokens
            assert not {40, 100, 257} & set(output[:-1])
            ended_early += len(output) < OPTIONS.max_new_tokens
            if index % 4 < 2:
                assert output == one.top_ids[:, 0].tolist()
    assert ended_early > 0


def test_a_wave_is_the_same_again(collector: Collector, tmp_path: Path) -> None:
    """It depends on its number and what came before alone."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        collector.collect(tmp_path / folder, 3)
        if folder == "one":
            collector.collect(tmp_path / folder, 1)
    one, two = (shard_path(tmp_path / folder, 3).read_bytes() for folder in ("one", "two"))
    assert one == two
    assert one != shard_path(tmp_path / "one", 1).read_bytes()


def test_a_later_pool_takes_up_what_was_answered(collector: Collector, tmp_path: Path) -> None:
    """The ninth wave begins a pool, which reads the eight before it."""
    with pytest.raises(FileNotFoundError):
        collector.collect(tmp_path, 8)
    for wave in range(9):
        collector.collect(tmp_path, wave)
    assert shard_path(tmp_path, 8).exists()


def encode(collector: Collector, *turns: tuple[str, str], template: str | None = None) -> list[int]:
    """The ids of a chat with a tokenizer that begins every text with <s>."""
    tokenizer: Any = collector._tokenizer
    tokenizer.chat_template = template
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    chat: Chat = tuple({"role": role, "content": content} for role, content in turns)
    return collector._encode(chat)


def test_a_template_that_knows_no_system_message(collector: Collector) -> None:
    """The user's first message begins with it then; what else is refused stays refused."""
    turns = ("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")
    token_ids = encode(collector, *turns, template=TEMPLATE)
    assert "uS\n\naabuc" == collector._tokenizer.decode(token_ids)
    for refused in ((), turns):
        with pytest.raises(TemplateError):
            encode(collector, *refused, ("user", "no"), template=TEMPLATE)


def test_a_template_that_knows_a_system_message(collector: Collector) -> None:
    """It is left alone, and writes the beginning itself if it wants one."""
    plain = "{% for m in messages %}{{ m['role'][0] + m['content'] }}{% endfor %}"
    token_ids = encode(collector, ("system", "S"), ("user", "a"), template=plain)
    assert "sSua" == collector._tokenizer.decode(token_ids)


@pytest.mark.parametrize("text", ["a", "<s>a"])
def test_text_begins_as_the_gateway_begins_it(collector: Collector, text: str) -> None:
    """Without a template the tokenizer's own beginning goes first, once."""
    token_ids = encode(collector, ("user", text))
    assert (0, "<s>a\n\n") == (token_ids[0], collector._tokenizer.decode(token_ids))


def test_options_within_a_short_context() -> None:
    """Prompt and output fit into the model's context together."""
    assert CollectOptions(max_prompt_tokens=352, max_new_tokens=160).within(8192).max_length == 512
    short = CollectOptions().within(64)
    assert (32, 32) == (short.max_prompt_tokens, short.max_new_tokens)
