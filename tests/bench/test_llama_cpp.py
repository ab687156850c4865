"""llama.cpp: what it is asked, how its pieces count, and that it says who is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.llama_cpp import LlamaCppRow, load_llama_cpp
from paceline.bench.prompts import Question
from paceline.bench.runs import Prompt
from paceline.cli.client import GenerationOptions
from paceline.errors import NotFound

OPTIONS = GenerationOptions(max_tokens=5, temperature=0.0)
PROMPTS = [Prompt(Question(str(number), "a", "?"), (number, 7)) for number in range(3)]


@dataclass
class FakeServer:
    """Streams three pieces, then an end that tells a number of tokens."""

    num_tokens: int
    requests: list[dict[str, Any]] = field(default_factory=list)
    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))

    def handle_completions(
        self, request: dict[str, Any], callback: Callable[[dict[str, Any]], bool]
    ) -> None:
        """Calls back with each piece; each goes on."""
        self.requests.append(request)
        self.together.wait()
        for text in "abc":
            assert not callback({"choices": [{"text": text, "finish_reason": None}]})
        usage = {"completion_tokens": self.num_tokens}
        callback({"choices": [{"text": "", "finish_reason": "stop"}], "usage": usage})


@pytest.mark.parametrize(("told", "arrivals"), [(3, [1, 1, 1]), (4, [1, 1, 1, 1])])
async def test_tokens_without_text_count(told: int, arrivals: list[int]) -> None:
    """An end token comes with the end; without one the end is no arrival."""
    row = LlamaCppRow("x", FakeServer(told), OPTIONS, 1)
    (run,) = await row.run(PROMPTS[:1])
    assert arrivals == [arrival.num_tokens for arrival in run.arrivals]
    assert (None, None) == (run.token_ids, run.stats)


async def test_what_is_asked() -> None:
    """The ids as they are, greedily, without a cache that an earlier prompt filled."""
    server = FakeServer(3)
    await LlamaCppRow("x", server, OPTIONS, 1).run(PROMPTS[:1])
    (request,) = server.requests
    assert ([0, 7], 5, 0.0) == (request["prompt"], request["n_predict"], request["temperature"])
    assert (False, False, True) == (
        request["cache_prompt"],
        request["ignore_eos"],
        request["stream"],
    )


async def test_prompts_go_out_together() -> None:
    """One thread each; runs come back in order."""
    server = FakeServer(3, together=threading.Barrier(3, timeout=30))
    runs = await LlamaCppRow("x", server, OPTIONS, 3).run(PROMPTS)
    assert ["0", "1", "2"] == [run.question.id for run in runs]


def test_who_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file of its own, or without the package, there is no row."""
    with pytest.raises(NotFound, match="GGUF"):
        load_llama_cpp(None, OPTIONS, 1, (1, 8))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotFound, match="not installed"):
        load_llama_cpp(tmp_path / "x.gguf", OPTIONS, 1, (1, 8))


@pytest.mark.model
async def test_the_real_one() -> None:
    """The built-in model's own file: two prompts at once give as many tokens as asked for."""
    pytest.importorskip("xllamacpp")
    from paceline.engine.model_source import find_gguf

    options = GenerationOptions(max_tokens=3, temperature=0.0, ignore_eos=True)
    row = load_llama_cpp(find_gguf("smollm2"), options, 1, (2, 8))
    assert ("llama.cpp Q4_1", 2) == (row.name, row.max_concurrency)
    runs = await row.run([Prompt(Question("1", "a", "?"), (504, 3575)) for _ in range(2)])
    assert [3, 3] == [run.num_tokens for run in runs]
