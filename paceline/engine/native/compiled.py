"""How loops are compiled, and memory by its address.

Every tensor among the arguments of a call costs two microseconds, so loops take addresses. Whoever
passes one answers for the memory behind it: dense, and as large as the loop's docstring says. Knows
no model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numba
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.engine.native.loop_cache import LoopCache, name_apart
from paceline.errors import FailedPrecondition

# What may change in float arithmetic: a product with its sum rounded together, and the order of a
# sum, which is decided when the loop is compiled. So no bit of a row depends on the rows beside it.
_FUSED = {"contract", "nsz"}
_REORDERED = {"reassoc", *_FUSED}
# The engines of a process run parallel loops at once, which numba's own pool of threads, its choice
# where it finds no better one, ends the process for.
numba.config.THREADING_LAYER = "threadsafe"


def compiled(*, parallel: bool = False, keeps_order: bool = False) -> Any:
    """Decorates a loop: compiled at its first call, kept on disk, run without the interpreter."""
    options = {
        "nogil": True,
        "fastmath": _FUSED if keeps_order else _REORDERED,
        "error_model": "numpy",
        "parallel": parallel,
    }

    def decorate(loop: Any) -> Any:
        name_apart(loop)
        dispatcher = numba.njit(**options)(loop)
        # Without a place to write every process compiles for itself.
        with contextlib.suppress(RuntimeError):
            dispatcher._cache = LoopCache(loop)
        return dispatcher

    return decorate


@intrinsic
def floats(context: Any, address: Any) -> Any:
    """The float32 numbers from an address on."""
    return _pointer(types.float32)


@intrinsic
def integers(context: Any, address: Any) -> Any:
    """The int64 numbers from an address on."""
    return _pointer(types.int64)


@intrinsic
def unsigned_bytes(context: Any, address: Any) -> Any:
    """The bytes from an address on."""
    return _pointer(types.uint8)


def _pointer(number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(number)(types.int64), generate


@intrinsic
def float_of_bits(context: Any, bits: Any) -> Any:
    """The float32 number that has these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


def find_num_shares() -> int:
    """Threads of a step, which are what the caller's parallel loops run on from now on.

    A pool has as many threads as the machine has cores, and would wake them all.

    Raises:
        FailedPrecondition: the system has no OpenMP library.
    """
    count = min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))
    try:
        numba.set_num_threads(count)
    except ValueError as error:
        raise FailedPrecondition(
            f"compiled loops need the system's OpenMP library (Debian: libgomp1): {error}"
        ) from None
    return count


@compiled()
def share_of(share, num_shares, count):
    """The first and one past the last of `count` things that are a share's."""
    return count * share // num_shares, count * (share + 1) // num_shares


def choose_by_count(build: Callable[[int], Any], most: int) -> Any:
    """A loop (count, ...) that runs the one that was built for this count, from 1 to `most`."""
    return _choose([build(count) for count in range(1, most + 1)], 1)


def _choose(loops: list[Any], first: int) -> Any:
    """By halves, since what a loop calls is compiled into it, at every level once more."""
    if len(loops) == 1:
        (loop,) = loops

        @compiled()
        def run(count, *arguments):
            loop(*arguments)

        return run
    middle = first + len(loops) // 2
    lower, upper = _choose(loops[: middle - first], first), _choose(loops[middle - first :], middle)

    @compiled()
    def choose(count, *arguments):
        if count < middle:
            lower(count, *arguments)
        else:
            upper(count, *arguments)

    return choose


def is_native(x: torch.Tensor) -> bool:
    """Whether loops can take a tensor: dense float32 numbers on the CPU."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()
