"""Vectors of 16 float32 numbers as values in compiled loops.

A `Vectors(n)` is n of them side by side, held in registers: rows of a product, or the numbers of an
attention head. The compiler cuts them to what the processor has. Written down because it does not
find these vectors by itself: it would have to interchange loops. Knows no layout of weights.
"""

from __future__ import annotations

from collections.abc import Callable
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


class Vectors(types.Type):  # type: ignore[misc]  # numba has no types
    """The type of `count` vectors."""

    def __init__(self, count: int) -> None:
        super().__init__(name=f"Vectors({count})")
        self.count = count


class Bytes(types.Type):  # type: ignore[misc]  # numba has no types
    """The type of 16 bytes."""

    def __init__(self) -> None:
        super().__init__(name="Bytes")


@register_model(Vectors)
class _VectorsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no types
    def __init__(self, models_of: Any, kind: Vectors) -> None:
        super().__init__(models_of, kind, ir.ArrayType(_FLOATS, kind.count))


@register_model(Bytes)
class _BytesModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no types
    def __init__(self, models_of: Any, kind: Bytes) -> None:
        super().__init__(models_of, kind, _BYTES)


_bytes = Bytes()


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


@intrinsic
def store(context: Any, numbers: Any, index: Any, stride: Any, vectors: Any) -> Any:
    """Stores vectors from an index on, each `stride` numbers behind the one before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.args[3].count
        places = _places(builder, arguments[0], arguments[1], arguments[2], count)
        for vector, place in zip(_split(builder, arguments[3], count), places, strict=True):
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64, vectors), generate


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
def dot(context: Any, left: Any, right: Any) -> Any:
    """The sum of all products of two groups of vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.args[0].count
        pairs = zip(*(_split(builder, a, count) for a in arguments), strict=True)
        total = ir.Constant(_FLOATS, [0.0] * LANES)
        for x, y in pairs:
            total = _multiply_add(builder, x, y, total)
        return _sum(builder, total)

    return types.float32(left, right), generate


@intrinsic
def load_bytes(context: Any, numbers: Any, index: Any) -> Any:
    """16 bytes from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.gep(arguments[0], [arguments[1]])
        return builder.load(builder.bitcast(place, _BYTES.as_pointer()), align=1)

    return _bytes(numbers, types.int64), generate


@intrinsic
def low_nibbles(context: Any, sixteen: Any) -> Any:
    """The lower four bits of 16 bytes, as one vector."""
    return Vectors(1)(sixteen), _nibbles(lambda b, v: b.and_(v, ir.Constant(_BYTES, [15] * LANES)))


@intrinsic
def high_nibbles(context: Any, sixteen: Any) -> Any:
    """The upper four bits of 16 bytes, as one vector."""
    return Vectors(1)(sixteen), _nibbles(lambda b, v: b.lshr(v, ir.Constant(_BYTES, [4] * LANES)))


@intrinsic
def signed_bytes(context: Any, sixteen: Any) -> Any:
    """16 signed bytes, as one vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = builder.sext(arguments[0], _LANE_INTEGERS)
        return _join(builder, [builder.sitofp(lanes, _FLOATS)])

    return Vectors(1)(sixteen), generate


@intrinsic
def add_outer(context: Any, total: Any, vector: Any, numbers: Any, index: Any, stride: Any) -> Any:
    """total[r] + vector * numbers[index + r * stride], for each vector r of the total."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, vector, numbers, index, stride = arguments
        (vector,) = _split(builder, vector, 1)
        rows = []
        for row in _split(builder, total, signature.args[0].count):
            number = builder.load(builder.gep(numbers, [index]))
            rows.append(_multiply_add(builder, vector, _spread(builder, number), row))
            index = builder.add(index, stride)
        return _join(builder, rows)

    return total(total, vector, numbers, types.int64, types.int64), generate


@intrinsic
def add_scaled(context: Any, total: Any, scale: Any, left: Any, right: Any) -> Any:
    """total[r] + scale * (left[r] + right[r]), number by number, scale being one vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.args[0].count
        (scale,) = _split(builder, arguments[1], 1)
        total, left, right = (_split(builder, arguments[i], count) for i in (0, 2, 3))
        return _join(
            builder,
            [
                _multiply_add(builder, scale, builder.fadd(x, y), t)
                for t, x, y in zip(total, left, right, strict=True)
            ],
        )

    return total(total, scale, left, right), generate


def _nibbles(pick: Callable[[Any, Any], Any]) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = builder.zext(pick(builder, arguments[0]), _LANE_INTEGERS)
        return _join(builder, [builder.uitofp(lanes, _FLOATS)])

    return generate


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
