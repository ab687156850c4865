"""Vectors of 16 float32 numbers as values in compiled loops.

A `Vectors(n)` is n of them side by side, held in registers: rows of a product, or the numbers of an
attention head. The compiler cuts them to what the processor has. Written down because it does not
find these vectors by itself: it would have to interchange loops. Knows no layout of weights.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

LANES = 16

_INDEX = ir.IntType(64)
_LANE = ir.IntType(32)
_BYTE = ir.IntType(8)
_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)
_LANE_INTEGERS = ir.VectorType(_LANE, LANES)
_BYTES = ir.VectorType(_BYTE, LANES)
_POINTER = _BYTE.as_pointer()


class Vectors(types.Type):  # type: ignore[misc]  # numba has no types
    """The type of `count` vectors."""

    def __init__(self, count: int) -> None:
        super().__init__(name=f"Vectors({count})")
        self.count = count


@register_model(Vectors)
class _VectorsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no types
    def __init__(self, models_of: Any, kind: Vectors) -> None:
        super().__init__(models_of, kind, ir.ArrayType(_FLOATS, kind.count))


@intrinsic(prefer_literal=True)
def zeros(context: Any, count: Any) -> Any:
    """`count` vectors of zeros; the count is a constant."""
    kind = Vectors(count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _join(builder, [ir.Constant(_FLOATS, [0.0] * LANES)] * kind.count)

    return kind(count), generate


@intrinsic(prefer_literal=True)
def load(context: Any, numbers: Any, index: Any, count: Any) -> Any:
    """`count` vectors that lie one after the other from an index on; the count is a constant."""
    kind = Vectors(count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = _places(builder, arguments[0], arguments[1], _constant(LANES), kind.count)
        return _join(builder, [builder.load(place, align=4) for place in places])

    return kind(numbers, types.int64, count), generate


@intrinsic(prefer_literal=True)
def store(context: Any, numbers: Any, index: Any, stride: Any, vectors: Any, width: Any) -> Any:
    """Stores rows of vectors from an index on, each `stride` numbers behind the one before it.

    The width, vectors of a row, which lie one after the other, is a constant.
    """
    row_width = width.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index, stride = arguments[:3]
        split = _split(builder, arguments[3], signature.args[3].count)
        for first in range(0, len(split), row_width):
            places = _places(builder, numbers, index, _constant(LANES), row_width)
            for vector, place in zip(split[first : first + row_width], places, strict=True):
                builder.store(vector, place, align=4)
            index = builder.add(index, stride)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64, vectors, width), generate


@intrinsic(prefer_literal=True)
def prefetch(context: Any, numbers: Any, index: Any, count: Any) -> Any:
    """Asks for `count` vectors from an index on, which will be loaded; may be behind the last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, _LANE, _LANE, _LANE])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        places = _places(builder, arguments[0], arguments[1], _constant(LANES), count.literal_value)
        # To be read, into the nearest cache, data.
        how = [ir.Constant(_LANE, number) for number in (0, 3, 1)]
        for place in places:
            builder.call(function, [builder.bitcast(place, _POINTER), *how])
        return context.get_dummy_value()

    return types.void(numbers, types.int64, count), generate


@intrinsic
def add_multiple(context: Any, total: Any, vectors: Any, factor: Any) -> Any:
    """Total + vectors * factor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.args[0].count
        factor = _spread(builder, arguments[2])
        pairs = zip(*(_split(builder, a, count) for a in arguments[:2]), strict=True)
        return _join(builder, [_multiply_add(builder, v, factor, t) for t, v in pairs])

    return total(total, vectors, types.float32), generate


@intrinsic
def store_dots(context: Any, numbers: Any, index: Any, stride: Any, rows: Any, vectors: Any) -> Any:
    """numbers[index + r * stride] = the sum of all products of row r with vectors.

    A row is as many vectors, side by side, as it is multiplied with.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index, stride, rows, vectors = arguments
        width = signature.args[4].count
        split = _split(builder, rows, signature.args[3].count)
        right = _split(builder, vectors, width)
        for first in range(0, len(split), width):
            total = ir.Constant(_FLOATS, [0.0] * LANES)
            for x, y in zip(split[first : first + width], right, strict=True):
                total = _multiply_add(builder, x, y, total)
            builder.store(_sum(builder, total), builder.gep(numbers, [index]))
            index = builder.add(index, stride)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64, rows, vectors), generate


@intrinsic
def sum_lanes(context: Any, vectors: Any) -> Any:
    """The sum of a vector's numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (vector,) = _split(builder, arguments[0], 1)
        return _sum(builder, vector)

    return types.float32(vectors), generate


@intrinsic
def load_nibbles(context: Any, numbers: Any, index: Any) -> Any:
    """The lower four bits of 16 bytes from an index on, then the upper ones, as two vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sixteen = _load_bytes(builder, arguments[0], arguments[1])
        lower = builder.and_(sixteen, ir.Constant(_BYTES, [15] * LANES))
        upper = builder.lshr(sixteen, ir.Constant(_BYTES, [4] * LANES))
        lanes = [builder.zext(part, _LANE_INTEGERS) for part in (lower, upper)]
        return _join(builder, [builder.uitofp(part, _FLOATS) for part in lanes])

    return Vectors(2)(numbers, types.int64), generate


@intrinsic(prefer_literal=True)
def load_signed_bytes(context: Any, numbers: Any, index: Any, count: Any) -> Any:
    """Signed bytes from an index on, as `count` vectors; the count is a constant."""
    kind = Vectors(count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index = arguments[:2]
        vectors = []
        for _ in range(kind.count):
            lanes = builder.sext(_load_bytes(builder, numbers, index), _LANE_INTEGERS)
            vectors.append(builder.sitofp(lanes, _FLOATS))
            index = builder.add(index, _constant(LANES))
        return _join(builder, vectors)

    return kind(numbers, types.int64, count), generate


@intrinsic
def multiply_add(context: Any, x: Any, y: Any, z: Any) -> Any:
    """X * y + z, number by number, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        split = (_split(builder, vectors, signature.args[0].count) for vectors in arguments)
        return _join(builder, [_multiply_add(builder, *one) for one in zip(*split, strict=True)])

    return x(x, y, z), generate


@intrinsic
def add_outer(context: Any, total: Any, vectors: Any, numbers: Any, index: Any, stride: Any) -> Any:
    """total[r] + vectors * numbers[index + r * stride], for each row r of the total.

    A row is as many vectors, side by side, as are added to it.
    """
    width = vectors.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, vectors, numbers, index, stride = arguments
        added = _split(builder, vectors, width)
        sums = _split(builder, total, signature.args[0].count)
        for first in range(0, len(sums), width):
            number = _spread(builder, builder.load(builder.gep(numbers, [index])))
            for i in range(width):
                sums[first + i] = _multiply_add(builder, added[i], number, sums[first + i])
            index = builder.add(index, stride)
        return _join(builder, sums)

    return total(total, vectors, numbers, types.int64, types.int64), generate


def _load_bytes(builder: Any, numbers: Any, index: Any) -> Any:
    place = builder.bitcast(builder.gep(numbers, [index]), _BYTES.as_pointer())
    return builder.load(place, align=1)


def _constant(number: int) -> Any:
    return ir.Constant(_INDEX, number)


def _places(builder: Any, numbers: Any, index: Any, stride: Any, count: int) -> list[Any]:
    """Where `count` vectors lie in memory."""
    places = []
    for _ in range(count):
        place = builder.gep(numbers, [index])
        places.append(builder.bitcast(place, _FLOATS.as_pointer()))
        index = builder.add(index, stride)
    return places


def _split(builder: Any, vectors: Any, count: int) -> list[Any]:
    return [builder.extract_value(vectors, i) for i in range(count)]


def _join(builder: Any, vectors: list[Any]) -> Any:
    joined = ir.Constant(ir.ArrayType(_FLOATS, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        joined = builder.insert_value(joined, vector, i)
    return joined


def _spread(builder: Any, number: Any) -> Any:
    """One number in all lanes."""
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_LANE_INTEGERS, [0] * LANES))


def _multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """X * y + z, rounded once."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [x, y, z])


def _sum(builder: Any, vector: Any) -> Any:
    """The sum of the lanes, by halves."""
    count = LANES
    while count > 1:
        count //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        lower, upper = (
            builder.shuffle_vector(
                vector,
                undefined,
                ir.Constant(ir.VectorType(_LANE, count), list(range(first, first + count))),
            )
            for first in (0, count)
        )
        vector = builder.fadd(lower, upper)
    return builder.extract_element(vector, ir.Constant(_LANE, 0))
