"""The built-in model in exact kernels: logits with the same bits however a step is cut."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.lean.kernels import choose_kernels
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder
from paceline.engine.models import LoadOptions, load
from paceline.engine.step import Span, Step
from paceline.engine.table_model import TableModel

# The conversion is tens of seconds of one core, more where others compute.
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

SIZE = 16
LENGTH = 560
TABLE = tuple(range(LENGTH // SIZE))
OTHER = tuple(range(LENGTH // SIZE, LENGTH // SIZE + 2))


@pytest.mark.parametrize(
    "prefix", ["", "quantized:int8:", "quantized:int4:"], ids=["float32", "int8", "int4"]
)
def test_logits_are_the_same_bits(tmp_path_factory: pytest.TempPathFactory, prefix: str) -> None:
    """B15, B37: 1, 2, 5, 9 and 16 rows, in chunks, in company, against the whole at once."""
    options = LoadOptions(cache_dir=tmp_path_factory.getbasetemp() / "models", exact=True)
    model = load(f"{prefix}smollm2", options, lambda _: None)
    assert not isinstance(model.network, TableModel)
    size = model.identity.vocabulary_size
    kernels = choose_kernels(model.identity)
    runner = LeanRunner(take_decoder(model.network, kernels), size)
    runner.allocate(len(TABLE) + len(OTHER), SIZE)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(size, (LENGTH,), generator=generator).tolist()

    def run(first: int, last: int, *, in_company: bool = False) -> torch.Tensor:
        spans = [Span(tuple(ids[first:last]), first, TABLE, last - first, LENGTH)]
        if in_company:
            spans.insert(0, Span(tuple(ids[:20]), 0, OTHER, 0, 20))
        return runner.run(Step(tuple(spans), SIZE))

    expected = run(0, LENGTH)
    for first in (0, 60, 250, 300, 500):
        for count in (1, 2, 5, 9, 16):
            rows = slice(first, first + count)
            assert torch.equal(expected[rows], run(first, first + count))
            assert torch.equal(expected[rows], run(first, first + count, in_company=True))
    chunks = [run(first, min(first + 96, LENGTH)) for first in range(0, LENGTH, 96)]
    assert torch.equal(expected, torch.cat(chunks))
