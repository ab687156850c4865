"""Generation by llama.cpp in this process, from the target's own GGUF file.

Through the package xllamacpp, imported only when asked to load. It computes in the file's own
quantization, so its text is not the target's; its ids are not told. One slot per prompt.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.runs import Arrival, Prompt, Run
from paceline.cli.client import GenerationOptions
from paceline.errors import NotFound

_SILENT = -1
# It rounds a slot's share of the context; what it adds to a prompt must fit as well.
_SPARE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class LlamaCppRow:
    """Completions of a server without its network side."""

    name: str
    server: Any = field(repr=False)
    options: GenerationOptions
    max_concurrency: int

    async def run(self, prompts: Sequence[Prompt]) -> list[Run]:
        """See Row."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(len(prompts)) as pool:
            runs = [loop.run_in_executor(pool, self._run, prompt) for prompt in prompts]
            return await asyncio.gather(*runs)

    def _run(self, prompt: Prompt) -> Run:
        temperature = 1.0 if self.options.temperature is None else self.options.temperature
        request = {
            "prompt": list(prompt.token_ids),
            "n_predict": self.options.max_tokens,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "ignore_eos": self.options.ignore_eos,
            "cache_prompt": False,
            "stream": True,
        }
        arrivals: list[Arrival] = []
        start = time.perf_counter()

        def note(piece: dict[str, Any]) -> bool:
            at_s = time.perf_counter() - start
            # The last piece tells the number of all tokens: an end token has no piece of its own,
            # nor has one whose text is not yet a whole character.
            missing = piece.get("usage", {}).get("completion_tokens", 0)
            missing -= sum(arrival.num_tokens for arrival in arrivals)
            is_last = piece["choices"][0]["finish_reason"] is not None
            if not is_last or missing > 0:
                arrivals.append(Arrival(at_s, missing if is_last else 1))
            return False

        self.server.handle_completions(request, note)
        return Run(prompt.question, tuple(arrivals))


def load_llama_cpp(
    file: Path | None, options: GenerationOptions, num_threads: int, bounds: tuple[int, int]
) -> LlamaCppRow:
    """Loads a GGUF file with slots for (most prompts at once, tokens of the longest prompt).

    Raises:
        NotFound: there is no file, or the package is not installed.
    """
    num_slots, num_prompt_tokens = bounds
    server = _start(file, num_threads, num_slots, num_prompt_tokens + (options.max_tokens or 0))
    assert file is not None
    name = f"llama.cpp {file.stem.rpartition('.')[2]}"  # the file's quantization, as is the custom
    return LlamaCppRow(name, server, options, num_slots)


@dataclass(frozen=True, slots=True)
class LlamaCppLaws:
    """The laws that llama.cpp would draw from, whole; most of their time goes into being told."""

    server: Any = field(repr=False)

    @classmethod
    def load(cls, file: Path | None, num_threads: int, longest: int) -> LlamaCppLaws:
        """Loads a GGUF file for texts of at most `longest` tokens.

        Raises:
            NotFound: there is no file, or the package is not installed.
        """
        return cls(_start(file, num_threads, 1, longest))

    def law(self, token_ids: Sequence[int], vocabulary_size: int) -> list[float]:
        """Log-probabilities of what follows, by id, at temperature 1."""
        request = {
            "prompt": list(token_ids),
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": vocabulary_size,
            "cache_prompt": True,
        }
        law = [-math.inf] * vocabulary_size

        def note(answer: dict[str, Any]) -> bool:
            (told,) = answer["choices"][0]["logprobs"]["content"]
            for one in told["top_logprobs"]:
                law[one["id"]] = one["logprob"]
            return False

        self.server.handle_completions(request, note)
        return law


def _start(file: Path | None, num_threads: int, num_slots: int, longest: int) -> Any:
    """A server with slots for sequences of `longest` tokens."""
    if file is None:
        raise NotFound("the target does not come from a GGUF file")
    if importlib.util.find_spec("xllamacpp") is None:
        raise NotFound("xllamacpp is not installed")
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.n_parallel = num_slots
    parameters.n_ctx = num_slots * (longest + _SPARE_TOKENS)
    parameters.cpuparams.n_threads = num_threads
    parameters.cpuparams_batch.n_threads = num_threads
    parameters.cache_ram_mib = 0
    parameters.verbosity = _SILENT
    return xllamacpp.Server(parameters)
