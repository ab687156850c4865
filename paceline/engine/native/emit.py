"""What code on vectors of 16 float32 numbers is made of, as LLVM's builder emits it.

Knows no types of numba: `vector.py` has those, and what compiled loops call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16

INDEX = ir.IntType(64)
LANE = ir.IntType(32)
BYTE = ir.IntType(8)
FLOAT = ir.FloatType()
FLOATS = ir.VectorType(FLOAT, LANES)
LANE_INTEGERS = ir.VectorType(LANE, LANES)
BYTES = ir.VectorType(BYTE, LANES)
POINTER = BYTE.as_pointer()


def load_bytes(builder: Any, numbers: Any, index: Any) -> Any:
    """16 bytes from an index on."""
    place = builder.bitcast(builder.gep(numbers, [index]), BYTES.as_pointer())
    return builder.load(place, align=1)


def constant(number: int) -> Any:
    """An index, or a step between two."""
    return ir.Constant(INDEX, number)


def places(builder: Any, numbers: Any, index: Any, stride: Any, count: int) -> list[Any]:
    """Where `count` vectors lie in memory."""
    found = []
    for _ in range(count):
        place = builder.gep(numbers, [index])
        found.append(builder.bitcast(place, FLOATS.as_pointer()))
        index = builder.add(index, stride)
    return found


def split(builder: Any, vectors: Any, count: int) -> list[Any]:
    """The vectors of a value of `count`."""
    return [builder.extract_value(vectors, i) for i in range(count)]


def join(builder: Any, vectors: list[Any]) -> Any:
    """The value that holds vectors."""
    joined = ir.Constant(ir.ArrayType(FLOATS, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        joined = builder.insert_value(joined, vector, i)
    return joined


def spread(builder: Any, number: Any) -> Any:
    """One number in all lanes."""
    undefined = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(LANE, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(LANE_INTEGERS, [0] * LANES))


def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """X * y + z, rounded once."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [x, y, z])


def sum_each(builder: Any, vectors: list[Any]) -> Any:
    """Lane i: the sum of the lanes of vector i of 16, by halves like `fold`."""
    size = LANES
    while len(vectors) > 1:
        # Every vector holds stretches of `size` lanes, each of which becomes half as long.
        lower = [i for i in range(2 * LANES) if i % size < size // 2]
        size //= 2
        masks = [ir.Constant(LANE_INTEGERS, [i + shift for i in lower]) for shift in (0, size)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [
            builder.fadd(*(builder.shuffle_vector(x, y, mask) for mask in masks)) for x, y in pairs
        ]
    return vectors[0]


def larger(builder: Any, x: Any, y: Any) -> Any:
    """The larger number in each lane, or of two."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def fold(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """One number out of the lanes, joined by halves."""
    count = LANES
    while count > 1:
        count //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        lower, upper = (
            builder.shuffle_vector(
                vector,
                undefined,
                ir.Constant(ir.VectorType(LANE, count), list(range(first, first + count))),
            )
            for first in (0, count)
        )
        vector = join(lower, upper)
    return builder.extract_element(vector, ir.Constant(LANE, 0))
