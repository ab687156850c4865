"""Vectors of 16 float32 numbers as values in compiled loops.

A `Vectors(n)` is n of them side by side, held in registers: rows of a product, or the numbers of an
attention head. The compiler cuts them to what the processor has. Written down because it does not
find these vectors by itself: it would have to interchange loops. Knows no layout of weights.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from paceline.engine.native import emit
from paceline.engine.native.emit import LANES


class Vectors(types.Type):  # type: ignore[misc]  # numba has no types
    """The type of `count` vectors."""

    def __init__(self, count: int) -> None:
        super().__init__(name=f"Vectors({count})")
        self.count = count


@register_model(Vectors)
class _VectorsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no types
    def __init__(self, models_of: Any, kind: Vectors) -> None:
        super().__init__(models_of, kind, ir.ArrayType(emit.FLOATS, kind.count))


@intrinsic(prefer_literal=True)
def zeros(context: Any, count: Any) -> Any:
    """`count` vectors of zeros; the count is a constant."""
    kind = Vectors(count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit.join(builder, [ir.Constant(emit.FLOATS, [0.0] * LANES)] * kind.count)

    return kind(count), generate


@intrinsic(prefer_literal=True)
def load(context: Any, numbers: Any, index: Any, count: Any) -> Any:
    """`count` vectors that lie one after the other from an index on; the count is a constant."""
    kind = Vectors(count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = emit.places(builder, arguments[0], arguments[1], emit.constant(LANES), kind.count)
        return emit.join(builder, [builder.load(place, align=4) for place in places])

    return kind(numbers, types.int64, count), generate


@intrinsic(prefer_literal=True)
def store(context: Any, numbers: Any, index: Any, stride: Any, vectors: Any, width: Any) -> Any:
    """Stores rows of vectors from an index on, each `stride` numbers behind the one before it.

    The width, vectors of a row, which lie one after the other, is a constant.
    """
    row_width = width.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index, stride = arguments[:3]
        split = emit.split(builder, arguments[3], signature.args[3].count)
        for first in range(0, len(split), row_width):
            places = emit.places(builder, numbers, index, emit.constant(LANES), row_width)
            for vector, place in zip(split[first : first + row_width], places, strict=True):
                builder.store(vector, place, align=4)
            index = builder.add(index, stride)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64, vectors, width), generate


@intrinsic(prefer_literal=True)
def prefetch(context: Any, numbers: Any, index: Any, count: Any) -> Any:
    """Asks for `count` vectors from an index on, which will be loaded; may be behind the last."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [emit.POINTER, emit.LANE, emit.LANE, emit.LANE])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        places = emit.places(
            builder, arguments[0], arguments[1], emit.constant(LANES), count.literal_value
        )
        # To be read, into the nearest cache, data.
        how = [ir.Constant(emit.LANE, number) for number in (0, 3, 1)]
        for place in places:
            builder.call(function, [builder.bitcast(place, emit.POINTER), *how])
        return context.get_dummy_value()

    return types.void(numbers, types.int64, count), generate


@intrinsic
def add_multiple(context: Any, total: Any, vectors: Any, factor: Any) -> Any:
    """Total + vectors * factor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.args[0].count
        factor = emit.spread(builder, arguments[2])
        pairs = zip(*(emit.split(builder, a, count) for a in arguments[:2]), strict=True)
        return emit.join(builder, [emit.multiply_add(builder, v, factor, t) for t, v in pairs])

    return total(total, vectors, types.float32), generate


@intrinsic
def larger(context: Any, x: Any, y: Any) -> Any:
    """The larger of each pair of numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs = zip(
            *(emit.split(builder, a, signature.args[0].count) for a in arguments), strict=True
        )
        return emit.join(builder, [emit.larger(builder, a, b) for a, b in pairs])

    return x(x, y), generate


@intrinsic
def store_dots(context: Any, numbers: Any, index: Any, stride: Any, rows: Any, vectors: Any) -> Any:
    """numbers[index + r * stride] = the sum of all products of row r with vectors.

    A row is as many vectors, side by side, as it is multiplied with.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index, stride, rows, vectors = arguments
        width = signature.args[4].count
        split = emit.split(builder, rows, signature.args[3].count)
        right = emit.split(builder, vectors, width)
        for first in range(0, len(split), width):
            total = ir.Constant(emit.FLOATS, [0.0] * LANES)
            for x, y in zip(split[first : first + width], right, strict=True):
                total = emit.multiply_add(builder, x, y, total)
            builder.store(emit.fold(builder, total, builder.fadd), builder.gep(numbers, [index]))
            index = builder.add(index, stride)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64, rows, vectors), generate


@intrinsic
def dots(context: Any, vectors: Any, numbers: Any, index: Any, stride: Any) -> Any:
    """Lane i: the sum of all products of vectors with the numbers from index + i * stride on.

    Bit for bit what `store_dots` makes of each.
    """
    width = vectors.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors, numbers, index, stride = arguments
        left, totals = emit.split(builder, vectors, width), []
        for _ in range(LANES):
            total = ir.Constant(emit.FLOATS, [0.0] * LANES)
            places = emit.places(builder, numbers, index, emit.constant(LANES), width)
            for x, place in zip(left, places, strict=True):
                total = emit.multiply_add(builder, x, builder.load(place, align=4), total)
            totals.append(total)
            index = builder.add(index, stride)
        return emit.join(builder, [emit.sum_each(builder, totals)])

    return Vectors(1)(vectors, numbers, types.int64, types.int64), generate


@intrinsic
def sum_lanes(context: Any, vectors: Any) -> Any:
    """The sum of a vector's numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (vector,) = emit.split(builder, arguments[0], 1)
        return emit.fold(builder, vector, builder.fadd)

    return types.float32(vectors), generate


@intrinsic
def largest_lane(context: Any, vectors: Any) -> Any:
    """The largest of a vector's numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (vector,) = emit.split(builder, arguments[0], 1)
        return emit.fold(builder, vector, functools.partial(emit.larger, builder))

    return types.float32(vectors), generate


@intrinsic
def load_nibbles(context: Any, numbers: Any, index: Any) -> Any:
    """The lower four bits of 16 bytes from an index on, then the upper ones, as two vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sixteen = emit.load_bytes(builder, arguments[0], arguments[1])
        lower = builder.and_(sixteen, ir.Constant(emit.BYTES, [15] * LANES))
        upper = builder.lshr(sixteen, ir.Constant(emit.BYTES, [4] * LANES))
        lanes = [builder.zext(part, emit.LANE_INTEGERS) for part in (lower, upper)]
        return emit.join(builder, [builder.uitofp(part, emit.FLOATS) for part in lanes])

    return Vectors(2)(numbers, types.int64), generate


@intrinsic(prefer_literal=True)
def load_signed_bytes(context: Any, numbers: Any, index: Any, count: Any) -> Any:
    """Signed bytes from an index on, as `count` vectors; the count is a constant."""
    kind = Vectors(count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, index = arguments[:2]
        vectors = []
        for _ in range(kind.count):
            lanes = builder.sext(emit.load_bytes(builder, numbers, index), emit.LANE_INTEGERS)
            vectors.append(builder.sitofp(lanes, emit.FLOATS))
            index = builder.add(index, emit.constant(LANES))
        return emit.join(builder, vectors)

    return kind(numbers, types.int64, count), generate


@intrinsic
def multiply_add(context: Any, x: Any, y: Any, z: Any) -> Any:
    """X * y + z, number by number, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        split = (emit.split(builder, vectors, signature.args[0].count) for vectors in arguments)
        return emit.join(
            builder, [emit.multiply_add(builder, *one) for one in zip(*split, strict=True)]
        )

    return x(x, y, z), generate


@intrinsic
def add_outer(context: Any, total: Any, vectors: Any, numbers: Any, index: Any, stride: Any) -> Any:
    """total[r] + vectors * numbers[index + r * stride], for each row r of the total.

    A row is as many vectors, side by side, as are added to it.
    """
    width = vectors.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, vectors, numbers, index, stride = arguments
        added = emit.split(builder, vectors, width)
        sums = emit.split(builder, total, signature.args[0].count)
        for first in range(0, len(sums), width):
            number = emit.spread(builder, builder.load(builder.gep(numbers, [index])))
            for i in range(width):
                sums[first + i] = emit.multiply_add(builder, added[i], number, sums[first + i])
            index = builder.add(index, stride)
        return emit.join(builder, sums)

    return total(total, vectors, numbers, types.int64, types.int64), generate
