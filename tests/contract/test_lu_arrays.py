"""Test the arrays, casts and roundings for HPL and HPL-MxP on every backend."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from mxpeak.precision import PRECISIONS
from tests.support.backends import Backend, backend_named, sizes
from tests.support.blocks import LOW, SHAPES, STORED, matrix, numbers, operands, panel, rounded, stored, stored_as
from tests.support.turns import for_each

# --- arrays


def test_new_arrays_have_the_precision_asked_for(backend: Backend) -> None:
    kernels, xp = backend.kernels, backend.kernels.xp
    types = {"fp64": xp.float64, "fp32": xp.float32}
    for precision, dtype in types.items():
        size = kernels.panel_size(37, 5, precision)
        column_major = kernels.panel(kernels.buffer(size, precision), 37, 5)
        assert column_major.shape == (37, 5)
        for array in (kernels.matrix(5, 3, precision), kernels.buffer(7, precision), column_major):
            assert array.dtype == dtype
            assert np.isnan(numbers(backend, array)).all()
    assert kernels.matrix(5, 3).dtype == kernels.buffer(7).dtype == xp.float64
    for precision in PRECISIONS:
        buffer = kernels.operand_buffer(7, 3, precision, "left")
        assert len(buffer) == kernels.operand_size(7, 3, precision, "left")
        assert np.isnan(numbers(backend, buffer)).all()
        if not backend.on_torch and precision not in backend.native:
            assert buffer.dtype == types["fp64" if precision == "fp64" else "fp32"]
    emulated = [name for name in PRECISIONS if kernels.emulates(name)]
    if backend.on_gpu:
        assert "fp16" not in emulated  # every GPU multiplies fp16
    else:
        assert emulated == [name for name in LOW if name not in backend.native]


def test_rows_of_tensors_begin_on_lines_and_not_in_one_set_of_a_cache(torch_backend: Backend) -> None:
    from mxpeak.kernels.torch.engine.device import TYPES

    kernels = torch_backend.kernels
    for precision in PRECISIONS:
        itemsize = TYPES[precision].itemsize
        for k in (1, 31, 64, 512, 1000, 1024, 4096):
            buffer = kernels.operand_buffer(k, 3, precision, "right")
            B = kernels.operand_matrix(buffer, k, 3, precision, "right")
            assert (B.shape, B.stride(0)) == ((k, 3), 1)
            assert B.stride(1) * itemsize % 128 == 0
            assert B.stride(1) * itemsize % 1024 != 0
            A = kernels.operand_matrix(buffer, 3, k, precision, "left")
            assert (A.shape, A.stride(1), A.data_ptr()) == ((3, k), 1, B.data_ptr())
    for precision, columns in product(STORED, (1, 512, 1000, 4096)):
        ld = kernels.matrix(2, columns, precision).stride(0) * TYPES[precision].itemsize
        assert ld % 128 == 0
        assert ld % 4096 != 0


def test_a_few_numbers_travel_both_ways(backend: Backend) -> None:
    kernels = backend.kernels
    v = kernels.xp.asarray([1.0, 2.0, 3.0])
    arrive = kernels.fetch(v)
    v[:] = 0.0
    assert arrive() == [1.0, 2.0, 3.0]
    assert v.tolist() == [0.0, 0.0, 0.0]
    assert kernels.indices([4, 0, 2]).tolist() == [4, 0, 2]


def test_the_array_namespace_makes_fp64_and_no_warnings(backend: Backend) -> None:
    xp = backend.kernels.xp
    arrays = [xp.zeros(2), xp.ones(2), xp.empty(2), xp.full(2, 0.5), xp.asarray([1.0, 2.0]), xp.eye(2)]
    assert all(x.dtype == xp.float64 for x in arrays)
    assert xp.zeros(2, dtype=xp.float32).dtype == xp.float32
    assert xp.asarray([1, 2]).dtype == xp.full(2, 3).dtype == xp.int64
    assert len({str(getattr(x, "device", "cpu")) for x in [*arrays, backend.kernels.buffer(1)]}) == 1
    column = xp.asarray(matrix(backend, np.arange(6.0).reshape(3, 2))[:, 1], copy=True)
    assert backend.numpy(column).flags.c_contiguous
    huge, zero = xp.full(1, 1e308), xp.zeros(1)
    found = [xp.multiply(huge, huge), xp.pow(zero, -0.5), xp.multiply(zero, xp.pow(zero, -1.0)), xp.sqrt(-huge)]
    assert np.array_equal([x.tolist()[0] for x in found], [np.inf, np.inf, np.nan, np.nan], equal_nan=True)


def test_copies_turn_where_the_orders_differ(backend: Backend, rng: Any) -> None:
    for shape, precision in product([(0, 3), (1, 1), (1, 70), (97, 1), (67, 131)], STORED):
        values = stored(rng.random(shape), precision)
        for source, target in product((matrix, panel), repeat=2):
            out = target(backend, np.zeros(shape), precision)
            backend.kernels.copy(source(backend, values, precision), out)
            assert np.array_equal(numbers(backend, out), values)


def test_what_is_begun_aside_is_there_once_it_is_joined(backend: Backend) -> None:
    kernels = backend.kernels
    with kernels.side_stream():
        v = kernels.xp.zeros(1)
    kernels.join()
    kernels.wait()
    assert v.tolist() == [0.0]
    begin = kernels.stopwatch.mark()
    assert kernels.stopwatch.seconds(begin, kernels.stopwatch.mark()) >= 0.0


def test_facts_say_what_computes_and_where(backend: Backend) -> None:
    kernels = backend.kernels
    facts, device = kernels.facts(), kernels.device_facts()
    assert facts["kernels"] == kernels.name == backend.name.split()[0]
    assert facts.keys() >= {"blas"}
    if not backend.on_torch:
        assert (device, kernels.transport) == ({}, None)
        return
    assert facts["torch"]
    assert ("triton" in facts) == kernels.device.triton
    where, transport = ("cuda:0", "device memory") if backend.on_gpu else ("cpu", "host memory")
    assert device["device"] == where
    assert (set(device) == {"device"}) == (not backend.on_gpu)
    assert kernels.transport.name == transport


# --- rounding


def interesting(backend: Backend) -> Any:
    """Return fp32 numbers by their bits: all upper halves, lower halves near ties, and random numbers.

    A format that keeps p bits cuts 24 - p: 13 for fp16 and tf32, 16 for bf16, 20 for fp8.  Half of the last place is
    bit 12, 15 or 19; each appears alone, with an odd last bit above it, and with its two fp32 neighbors.  Triton's
    interpreter gets all signs and exponents, and of the other 7 bits of an upper half only those at a carry or a tie.
    """
    lows = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    uppers = np.arange(2**16, dtype=np.uint32)
    if backend.interpreted:
        uppers = uppers[np.isin(uppers & 0x7F, [0, 1, 7, 8, 9, 0x17, 0x18, 0x19, 0x7F])]
    bits = uppers[:, None] << 16 | np.array(lows, dtype=np.uint32)
    more = np.random.default_rng(8).integers(0, 2**32, 2**13 if backend.interpreted else 2**17, dtype=np.uint32)
    return np.concatenate([bits.ravel(), more]).view(np.float32).reshape(-1, 1024)


def same_bits(actual: Any, expected: Any) -> bool:
    """Return whether numbers and signs, also of zeros, are the same; all NaN are equal."""
    nan = np.isnan(expected)
    bits = (a[~nan].view(np.uint32) for a in (np.ascontiguousarray(actual), np.ascontiguousarray(expected)))
    return bool(np.isnan(actual[nan]).all()) and np.array_equal(*bits)


@for_each("precision", LOW)
def test_casts_are_others_casts_bit_for_bit(backend: Backend, precision: str) -> None:
    kernels, x = backend.kernels, interesting(backend)
    expected = rounded(x, precision)
    with np.errstate(all="ignore"):  # signaling NaN, and the arithmetic of the interpreter
        source = matrix(backend, x, "fp32")
        for side in ("left", "right"):
            buffer = kernels.operand_buffer(*x.shape, precision, side)
            target = kernels.operand_matrix(buffer, *x.shape, precision, side)
            kernels.cast(source, target, precision)
            assert same_bits(numbers(backend, target), expected)
        wide = kernels.matrix(*x.shape, "fp32")
        kernels.cast(source, wide, precision)
        assert same_bits(numbers(backend, wide), expected)


#: (x, x after rounding): ties go to the even number; largest and smallest numbers, and beyond.
EDGES = {
    "fp16": [
        (65519.0, 65504.0),
        (65520.0, np.inf),
        (-65520.0, -np.inf),
        (-1e-9, -0.0),
        (2.0**-25, 0.0),
        (3 * 2.0**-25, 2.0**-23),
        (1 + 2.0**-11, 1.0),
        (1 + 3 * 2.0**-11, 1 + 2.0**-9),
    ],
    "bf16": [(3.4e38, np.inf), (1 + 2.0**-8, 1.0), (3 * 2.0**-134, 2.0**-132)],
    "tf32": [(3.4028234663852886e38, np.inf), (-0.0, -0.0), (1 + 3 * 2.0**-11, 1 + 2.0**-9)],
    "fp8": [
        (464.0, 448.0),
        (465.0, np.nan),
        (np.inf, np.nan),
        (2.0**-10, 0.0),
        (3 * 2.0**-10, 2.0**-8),
        (17.0, 16.0),
        (19.0, 20.0),
    ],
}


def test_casts_at_the_edges(backend: Backend) -> None:
    for precision, cases in EDGES.items():
        x, expected = np.array(cases, dtype=np.float32).T
        with np.errstate(all="ignore"):  # the interpreter's arithmetic
            found, _ = operands(backend, x[None, :], x[:, None], precision)
        assert same_bits(numbers(backend, found)[0], expected), precision


def test_the_definition_rounds_fp64_once() -> None:
    reference = backend_named("reference").kernels
    target = reference.matrix(1, 3, "fp32")
    for precision, half in (("bf16", 2.0**-8), ("fp16", 2.0**-11), ("tf32", 2.0**-11), ("fp8", 2.0**-4)):
        # Rounding to fp32 first would lose the 2^-40 above the tie, and the tie would go to the even 1.
        reference.cast(np.array([[1 + half, 1 + half + 2.0**-40, -1 - half - 2.0**-40]]), target, precision)
        assert list(target[0]) == [1.0, 1 + 2 * half, -1 - 2 * half]


def test_a_cast_writes_its_own_block_and_keeps_its_source(backend: Backend, rng: Any) -> None:
    kernels = backend.kernels
    shapes = sizes(backend, *SHAPES, (67, 131), interpreted=((0, 3), (5, 97), (67, 33)))
    for precision, (m, n) in product(PRECISIONS, shapes):
        format_ = stored_as(precision)
        values = stored(rng.standard_normal((m, n)) * 100, format_)
        source, around = matrix(backend, values, format_), kernels.matrix(m + 3, n + 5, format_)
        kernels.cast(source, around[1 : m + 1, 2 : n + 2], precision)
        targets = [(around[1 : m + 1, 2 : n + 2], around)]
        for side in ("left", "right"):
            buffer = kernels.operand_buffer(m, n, precision, side)
            target = kernels.operand_matrix(buffer, m, n, precision, side)
            kernels.cast(source, target, precision)
            targets.append((target, buffer))
        for target, room in targets:
            assert np.array_equal(numbers(backend, target), rounded(values, precision))
            everything = numbers(backend, room)
            if room is around or precision not in backend.native:  # native operands are padded with zeros
                assert np.isnan(everything).sum() == everything.size - m * n
        assert np.array_equal(numbers(backend, source), values)
