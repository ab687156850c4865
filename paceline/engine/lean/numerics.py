"""What decides the last bits of the lean decoder's results, as text for a fingerprint.

Its loops sum each row in one order, whatever the step and the number of threads, so what is left is
the code and what it was compiled for. That this holds is shown by `exact_check.py`.
"""

from __future__ import annotations

import llvmlite
import numba
import torch

_VERSION = 2
"""Of the order of sums in `paceline/engine/native`: of another one, ids may differ at near ties."""
# What the machine has, not what it computes with.
_BYSTANDERS = ("num_logical_cores", "num_physical_cores", "num_sockets")


def describe_numerics() -> str:
    """The loops' version, those of their compilers, and the processor's kind."""
    processor = {
        name: value
        for name, value in sorted(torch.cpu.get_capabilities().items())
        if name not in _BYSTANDERS
    }
    return (
        f"exact={_VERSION} torch={torch.__version__} numba={numba.__version__}"
        f" llvmlite={llvmlite.__version__}"
        f" cpu={torch.backends.cpu.get_cpu_capability()} {processor}"
    )
