"""Test on every backend the products that detect emulated fp64, with fake libraries that emulate."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mxpeak.solvers.fp64_probe import Fp64Products, exact_sum, probe_products, products_are_emulated
from tests.support.backends import BACKENDS, backend_named
from tests.support.emulated_products import (
    Emulating,
    Product,
    below,
    by_residues,
    exact,
    native,
    shuffled,
    sliced,
    unless_wide,
)

SHAPES = [(0, 0, 0), (150, 12, 64), (131, 37, 101), (257, 9, 192)]


@pytest.mark.parametrize("name", BACKENDS)
def test_products_of_every_backend_are_native(name: str) -> None:
    for m, n, k in SHAPES[:2] if backend_named(name).interpreted else SHAPES:
        assert probe_products(backend_named(name).kernels, m, n, k) == Fp64Products(emulated=False)


@pytest.mark.parametrize("bits", [40, 53, 55, 62])
def test_residues_are_emulation_and_their_bits_are_counted(bits: int) -> None:
    assert probe_products(Emulating(by_residues(bits)), 0, 0, 0) == Fp64Products(True, bits)


@pytest.mark.parametrize("slices", [5, 8])
def test_slices_are_emulation_and_their_bits_are_counted(slices: int) -> None:
    assert probe_products(Emulating(sliced(slices)), 0, 0, 0) == Fp64Products(True, 7 * slices)


@pytest.mark.parametrize(
    ("product", "emulated"),
    [
        (native, False),
        (shuffled(1), False),
        (unless_wide(20, by_residues(60)), True),
        (below(128, by_residues(55)), True),
        (below(200, by_residues(55)), False),
    ],
    ids=["native", "native in a new order", "dynamic precision", "enough rows", "too few rows"],
)
def test_the_shape_and_the_exponents_decide(product: Product, emulated: bool) -> None:
    assert probe_products(Emulating(product), 150, 12, 64).emulated is emulated


def test_an_emulation_that_keeps_all_bits_is_seen_by_its_rounding() -> None:
    kernels, random = Emulating(exact), np.random.default_rng(3)
    A, B, C = random.standard_normal((9, 64)), random.standard_normal((64, 9)), np.empty((9, 9))
    assert products_are_emulated(kernels, C, A, B) is True
    assert products_are_emulated(Emulating(native), C, A, B) is False


def test_dynamic_precision_has_no_number_of_bits() -> None:
    assert probe_products(Emulating(unless_wide(20, by_residues(60))), 0, 0, 0).bits is None


def test_operands_are_restored_bitwise() -> None:
    random = np.random.default_rng(4)
    A, B, C = random.standard_normal((11, 65)), random.standard_normal((65, 13)), np.empty((11, 13))
    before = A.copy(), B.copy()
    products_are_emulated(Emulating(native), C, A, B)
    assert np.array_equal(A, before[0])
    assert np.array_equal(B, before[1])


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 0.0])
def test_products_that_are_not_finite_or_zero_decide_nothing(spoil: float) -> None:
    A, B, C = np.ones((9, 64)), np.ones((64, 9)), np.empty((9, 9))
    A[:] *= spoil
    with np.errstate(invalid="ignore"):
        assert products_are_emulated(Emulating(native), C, A, B) is None


def test_exact_sums() -> None:
    x, y = [(3, 0), (-(2**52 + 1), -52), (0, 5)], [(5, 1), (7, 0), (11, 2)]
    assert exact_sum(x, y) == (30 - Fraction(7 * (2**52 + 1), 2**52), 30 + Fraction(7 * (2**52 + 1), 2**52))
    assert exact_sum([], []) == (0, 0)
