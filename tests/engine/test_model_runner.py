"""Networks through the paged cache, by both runners, against their own stock forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline.bench.paged_reference import attend_plainly
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import serves, take_decoder
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.step import ModelRunner, Span, Step
from paceline.errors import FailedPrecondition

BuildNetwork = Callable[..., PreTrainedModel]
BuildRunner = Callable[[PreTrainedModel], ModelRunner]

VOCABULARY = 500
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 7},
    "gemma3_text": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


class Feeder:
    """Feeds sequences to a runner, span by span, over block tables that are given."""

    def __init__(self, runner: ModelRunner, tables: list[tuple[int, ...]], size: int) -> None:
        runner.allocate(1 + max(max(table) for table in tables), size)
        self._runner = runner
        self._tables = tables
        self._size = size
        self.cached = [0] * len(tables)
        self.ids: list[list[int]] = [[] for _ in tables]

    def feed(self, *parts: tuple[int, list[int], int]) -> list[torch.Tensor]:
        """Runs (sequence, tokens, number of logits) in one step; gives logits by part."""
        spans = []
        for index, ids, num_logits in parts:
            self.ids[index][self.cached[index] :] = ids
            spans.append(Span(tuple(ids), self.cached[index], self._tables[index], num_logits, 1))
            self.cached[index] += len(ids)
        logits = self._runner.run(Step(tuple(spans), self._size))
        return list(torch.split(logits, [num_logits for _, _, num_logits in parts]))


def stock(network: PreTrainedModel, ids: list[int], last: int) -> torch.Tensor:
    """Logits of the last rows by the network's own attention, [last, V]."""
    implementation = network.config._attn_implementation
    network.set_attn_implementation("eager")
    with torch.no_grad():
        logits: torch.Tensor = network(torch.tensor([ids]), use_cache=False).logits
    network.set_attn_implementation(implementation)
    return logits[0, -last:, :VOCABULARY]


def some_ids(length: int, seed: int) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
    return ids


@pytest.fixture(params=list(MODELS))
def network(request: pytest.FixtureRequest, tiny_network: BuildNetwork) -> PreTrainedModel:
    """Each served family in turn."""
    return tiny_network(request.param, **MODELS[request.param])


def run_lean(network: PreTrainedModel) -> ModelRunner:
    """The lean runner on a copy, since it uses the network up."""
    if not serves(network):
        pytest.skip("not of the Llama-shaped family")
    return LeanRunner(take_decoder(copy.deepcopy(network)), VOCABULARY)


class RecordingRunner(CudaRunner):
    """Records steps over every cache that it is given."""

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Allocates and records."""
        super().allocate(num_blocks, block_size)
        self.record(lambda run: run)


def run_as_cuda_does(network: PreTrainedModel) -> ModelRunner:
    """The runner of CUDA on a copy, with its kernel written out and steps filled up."""
    if not serves(network):
        pytest.skip("not of the Llama-shaped family")
    decoder = take_decoder(copy.deepcopy(network), by_place=False)
    return RecordingRunner(decoder, VOCABULARY, attend_plainly)


RUNNERS: dict[str, BuildRunner] = {
    "transformers": lambda network: NetworkRunner(network, VOCABULARY),
    "lean": run_lean,
    "cuda": run_as_cuda_does,
}


@pytest.fixture(params=list(RUNNERS))
def build_runner(request: pytest.FixtureRequest) -> BuildRunner:
    """Each runner in turn."""
    return RUNNERS[request.param]


def expect_stock(feeder: Feeder, network: PreTrainedModel, index: int, got: torch.Tensor) -> None:
    """Compares logits of a sequence's last rows with the stock forward over all it was fed."""
    expected = stock(network, feeder.ids[index], len(got))
    torch.testing.assert_close(expected, got, atol=1e-5, rtol=0)


def test_ragged_steps_equal_the_stock_model(
    network: PreTrainedModel, build_runner: BuildRunner
) -> None:
    """B17, B51, B70: chunks, decodes and proposals of three sequences share steps.

    Blocks are scattered, the proposal has more rows than the windows are wide.
    """
    tables = [(9, 2, 14, 5, 0, 7), (1, 3, 4, 6, 8, 10, 11), (15, 13, 12)]
    feeder = Feeder(build_runner(network), tables, 4)
    first, second = feeder.feed((0, some_ids(11, 1), 0), (1, some_ids(6, 2), 2))
    assert (0, VOCABULARY) == first.shape
    expect_stock(feeder, network, 1, second)
    parts = feeder.feed((2, some_ids(3, 3), 3), (0, some_ids(1, 4), 1), (1, some_ids(9, 5), 9))
    for index, got in zip((2, 0, 1), parts, strict=True):
        expect_stock(feeder, network, index, got)
    parts = feeder.feed((1, some_ids(1, 6), 1), (0, some_ids(8, 7), 5), (2, some_ids(6, 8), 6))
    for index, got in zip((1, 0, 2), parts, strict=True):
        expect_stock(feeder, network, index, got)


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 8])
def test_rollback_leaves_no_trace(
    network: PreTrainedModel, build_runner: BuildRunner, num_draft_tokens: int
) -> None:
    """B16, B51, B52: after rejected rows, the next ones are as if they had never been."""
    feeder = Feeder(build_runner(network), [(3, 0, 4, 1, 6, 2, 5, 9, 8, 7, 11, 10)], 4)
    feeder.feed((0, some_ids(5, 1), 0))
    for round_ in range(5):
        (got,) = feeder.feed((0, some_ids(num_draft_tokens + 1, 10 + round_), num_draft_tokens + 1))
        expect_stock(feeder, network, 0, got)
        feeder.cached[0] -= min(num_draft_tokens, round_)  # so many are rejected
        del feeder.ids[0][feeder.cached[0] :]


def test_long_prompt_in_chunks_equals_all_at_once(
    network: PreTrainedModel, build_runner: BuildRunner
) -> None:
    """B15: how a prompt is cut does not show."""
    ids = some_ids(70, 1)
    feeder = Feeder(build_runner(network), [tuple(range(18)), tuple(range(18, 36))], 4)
    (whole,) = feeder.feed((0, ids, 1))
    feeder.feed((1, ids[:1], 0))
    feeder.feed((1, ids[1:33], 0))
    feeder.feed((1, ids[33:65], 0))
    (chunked,) = feeder.feed((1, ids[65:], 1))
    torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=0)
    expect_stock(feeder, network, 0, whole)


def test_copied_block_continues_like_its_source(
    tiny_network: BuildNetwork, build_runner: BuildRunner
) -> None:
    """Copy on write: a branch over copied blocks sees what the original sees."""
    network = tiny_network("llama")
    runner = build_runner(network)
    feeder = Feeder(runner, [(0, 1), (0, 2)], 4)
    feeder.feed((0, some_ids(6, 1), 0))
    feeder.ids[1], feeder.cached[1] = list(feeder.ids[0]), 6
    runner.copy_blocks([(1, 2)])
    parts = feeder.feed((0, [7, 8], 2), (1, [9, 10], 2))
    for index, got in enumerate(parts):
        expect_stock(feeder, network, index, got)


def test_padded_head_is_cut(tiny_network: BuildNetwork, build_runner: BuildRunner) -> None:
    """B44: rows of the head beyond the tokenizer never reach a law; logits are float32."""
    network = tiny_network("llama").to(torch.bfloat16)
    feeder = Feeder(build_runner(network), [(0, 1)], 4)
    (logits,) = feeder.feed((0, [1, 2, 3], 2))
    assert ((2, VOCABULARY), torch.float32) == (logits.shape, logits.dtype)


def test_layers_are_seen_not_guessed(tiny_network: BuildNetwork) -> None:
    """The cache has the shapes that the layers really store."""
    runner = NetworkRunner(tiny_network("llama"), VOCABULARY)
    assert [(2, 16, 16)] * 2 == [
        (layer.num_kv_heads, layer.key_dim, layer.value_dim) for layer in runner.layers
    ]


@pytest.mark.parametrize(
    ("model_type", "settings", "cause"),
    [
        ("gemma2", {}, "Gemma2Attention asks attention for softcap"),
        (
            "gpt_oss",
            {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": None},
            "GptOssAttention asks attention for s_aux",
        ),
        ("stablelm", {}, "StableLmAttention does not hand keywords on"),
        ("nemotron", {}, "NemotronAttention does not hand keywords on"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "BloomForCausalLM .* 0 of its 2 layers"),
        (
            "gpt_neo",
            {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
            "GPTNeoForCausalLM .* 0 of its 2 layers",
        ),
    ],
)
def test_networks_that_would_be_wrong_are_refused(
    tiny_network: BuildNetwork, model_type: str, settings: dict[str, Any], cause: str
) -> None:
    """Soft caps, sinks, lost keywords, and networks that never call the function: by name."""
    network = tiny_network(model_type, **settings)
    with pytest.raises(FailedPrecondition, match=cause):
        NetworkRunner(network, VOCABULARY)


def test_float32_is_refused_where_it_has_no_kernel(tiny_network: BuildNetwork) -> None:
    """Off the CPU the paged kernel takes half precision only, and that is said at load."""
    network = tiny_network("llama").to("meta")
    with pytest.raises(FailedPrecondition, match="bfloat16 or float16, not float32"):
        NetworkRunner(network, VOCABULARY)
