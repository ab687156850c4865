"""What decides the last bits is told, and nothing else."""

from __future__ import annotations

import numba
import torch

from paceline.engine.lean.numerics import describe_numerics


def test_numerics_name_what_decides_the_last_bits() -> None:
    """Compilers and the processor; never how many cores it has, or how many threads compute."""
    text = describe_numerics()
    assert f"torch={torch.__version__}" in text
    assert f"numba={numba.__version__}" in text
    assert f"cpu={torch.backends.cpu.get_cpu_capability()}" in text
    assert "num_" not in text
    assert "threads" not in text
