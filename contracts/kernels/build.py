"""How kernels are compiled, and what LLVM can do that Numba does not offer."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

U64 = np.uint64
LANES = 32
"""Numbers that :func:`dot_half` multiplies at once."""


def read(dtype: Any, ndim: int = 1) -> types.Array:
    """An array that is only read; one that may be written to is taken too."""
    return types.Array(dtype, ndim, "C", readonly=True)


def write(dtype: Any, ndim: int = 1) -> types.Array:
    return types.Array(dtype, ndim, "C")


def compiled(result: Any, *arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    signature = result(*arguments)
    return njit(signature, nogil=True, cache=bool(config.CACHE_DIR), error_model="numpy", **options)


@intrinsic
def word_at(context: Any, data: Any, at: Any) -> Any:
    """Eight bytes from any place on, little-endian."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.intp), generate


@intrinsic
def put_word(context: Any, data: Any, at: Any, word: Any) -> Any:
    """Write eight bytes from any place on, little-endian."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        builder.store(arguments[2], builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, types.uint64), generate


@intrinsic
def address(context: Any, data: Any) -> Any:
    """Where an array begins. A function that takes this instead counts no references, which would cost more than it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(array.data, ir.IntType(64))

    return types.int64(data), generate


@intrinsic
def byte_of(context: Any, begin: Any, at: Any) -> Any:
    """The byte at a place behind an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(builder.add(*arguments), ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def word_of(context: Any, begin: Any, at: Any) -> Any:
    """Eight bytes from a place behind an address on, little-endian."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(builder.add(*arguments), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.int64, types.int64), generate


@njit
def whole_of(begin: int, at: int) -> np.int64:
    """The int64 at a place of an array behind an address."""
    return np.int64(word_of(begin, 8 * at))


@intrinsic
def prefetch(context: Any, array: Any, at: Any) -> Any:
    """Have the cache line of the element at a flat position brought near; nothing happens where there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])  # a read, to be kept, of data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def dot_half(context: Any, bits: Any, at: Any, query: Any, query_at: Any) -> Any:
    """Dot product of ``LANES`` fp16 numbers with as many fp32 ones, both from flat positions on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        halves, floats = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(ir.FloatType(), LANES)
        data, wanted = (context.make_array(signature.args[n])(context, builder, arguments[n]).data for n in (0, 2))
        left = builder.bitcast(builder.gep(data, [arguments[1]]), halves.as_pointer())
        right = builder.bitcast(builder.gep(wanted, [arguments[3]]), floats.as_pointer())
        wide = builder.fpext(builder.load(left, align=2), floats)
        product = builder.fmul(wide, builder.load(right, align=4))
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), floats])
        total = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        return builder.call(total, [ir.FloatType()(0.0), product], fastmath=("reassoc",))

    return types.float32(bits, types.intp, query, types.intp), generate


@intrinsic
def half(context: Any, bits: Any) -> Any:
    """The fp16 number with these bits as fp32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def trailing_zeros(context: Any, word: Any) -> Any:
    """Bits below the lowest 1 of a word; 64 where there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(context: Any, word: Any) -> Any:
    """Bits above the highest 1 of a word; 64 where there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate


@intrinsic
def product_high(context: Any, one: Any, other: Any) -> Any:
    """The upper 64 of the 128 bits of a product of two words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        left, right = (builder.zext(argument, wide) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(left, right), wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def double(context: Any, bits: Any) -> Any:
    """The fp64 number with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate
