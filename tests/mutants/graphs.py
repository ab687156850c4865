"""Mistakes in steps on CUDA: others' slots, surplus that shows, logits that are gone."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PACKED = "paceline/engine/lean/packed.py"
_RUNNER = "paceline/engine/lean/cuda_runner.py"
_GRAPHS = "paceline/engine/lean/graphs.py"
_CHECK = "paceline/engine/lean/graph_check.py"
_ATTENTION = "paceline/engine/lean/paged_attention.py"
_CACHE = "paceline/engine/lean/slot_cache.py"

_PACKED_TESTS = ("tests/engine/lean/test_packed.py",)
_RUN = ("tests/engine/lean/test_cuda_runner.py",)
_ASKED = ("tests/engine/lean/test_paged_attention.py::test_the_kernel_is_asked_for_the_same",)

MUTANTS = (
    Mutant(
        "surplus rows written into the first block",
        _PACKED,
        "list_slots(step), spare_block * step.block_size",
        "list_slots(step), 0",
        (*_PACKED_TESTS, *_RUN),
    ),
    Mutant(
        "surplus rows given to the last sequence",
        _PACKED,
        "np.minimum(step.num_rows + surplus, shape.num_rows)",
        "shape.num_rows",
        _PACKED_TESTS,
    ),
    Mutant(
        "a step repeated that has too few blocks in its tables",
        _GRAPHS,
        "return one if needed.table_width <= one.shape.table_width else None",
        "return one",
        ("tests/engine/lean/test_graphs.py",),
    ),
    Mutant(
        "logits of the first rows instead of those that are wanted",
        _RUNNER,
        "if num_wanted < step.num_rows:",
        "if num_wanted > step.num_rows:",
        _RUN,
    ),
    Mutant(
        "logits handed out that the next step overwrites",
        _RUNNER,
        "return logits[:num_wanted].to(torch.float32, copy=True)",
        "return logits[:num_wanted]",
        _RUN,
    ),
    Mutant(
        "steps recorded over a cache that is gone",
        _RUNNER,
        "        self._recorded = []\n        self._cache = None",
        "        self._cache = None",
        _RUN,
    ),
    Mutant(
        "no starts of keys, which the kernel demands",
        _ATTENTION,
        "        rows.starts,  # The",
        "        None,  # The",
        _ASKED,
    ),
    Mutant(
        "a window one position too wide on CUDA",
        _ATTENTION,
        "-1 if call.window is None else call.window - 1",
        "-1 if call.window is None else call.window",
        _ASKED,
    ),
    Mutant(
        "keys split by the company of a row",
        _ATTENTION,
        "num_splits=1",
        "num_splits=None",
        _ASKED,
    ),
    Mutant(
        "no spare block",
        _CACHE,
        "self.spare_block = num_blocks",
        "self.spare_block = num_blocks - 1",
        ("tests/engine/lean/test_slot_cache.py",),
    ),
    Mutant(
        "recorded steps that compute nothing kept",
        _CHECK,
        "error if math.isfinite(error) else math.inf",
        "error if math.isfinite(error) else 0.0",
        ("tests/engine/lean/test_graph_check.py",),
    ),
    Mutant(
        "recorded steps that differ kept",
        _CHECK,
        "    runner.forget_recorded()\n",
        "",
        ("tests/engine/lean/test_graph_check.py",),
    ),
)
