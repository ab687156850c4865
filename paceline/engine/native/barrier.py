"""Where threads of one compiled call wait for one another.

They spin, since what they wait for is microseconds away, and give their core up where it is not: on
a machine with other work a thread may be without one. Knows no step.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.native.compiled import compiled

_INTEGER = ir.IntType(64)
_PATIENCE = 2000
"""Looks before a core is given up."""


@intrinsic
def _add_one(context: Any, address: Any) -> Any:
    """Adds 1 to the int64 at an address, as one of many that may do so."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _INTEGER.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(_INTEGER, 1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def _read(context: Any, address: Any) -> Any:
    """The int64 at an address, as others have written it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _INTEGER.as_pointer())
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def _give_up_core(context: Any) -> Any:
    """Lets another thread run."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@compiled()
def wait(counter_at, num_threads, meeting):
    """Waits until all threads have come to a meeting; gives the number of the next one.

    Args:
        counter_at: Address of an int64 that was 0 before the first meeting.
        num_threads: How many come.
        meeting: Number of this one, from 1 on.
    """
    if num_threads > 1:
        _add_one(counter_at)
        patience = _PATIENCE
        while _read(counter_at) < meeting * num_threads:
            patience -= 1
            if patience < 0:
                _give_up_core()
    return meeting + 1
