"""Test sums of norms in folds and in doubled precision, and operations on them, on every backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.kernels.contract.norms import ExtendedParts, Tile
from mxpeak.kernels.host.norms import tile_table
from mxpeak.kernels.reference.norms import entries, magnitude
from mxpeak.kernels.torch.engine import tile_table as norm_table
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive
from mxpeak.layout.structure import ENDLESS, WHOLE, Band
from mxpeak.solvers.exact_norms import sigmas
from mxpeak.solvers.norms import root
from tests.support.norm_backends import (
    BOTH,
    HOST,
    ORACLE,
    SUBSETS,
    TORCH,
    WANTS,
    Case,
    Norms,
    agree,
    case_of,
    check_maxima,
    check_pass,
    norms_of,
    random_case,
)
from tests.support.norm_tiles import BANDS, FORWARD, TYPES, magnitudes_of, one_tile, ragged_tiles, random_values
from tests.support.notes import note_case
from tests.support.roundoff import U
from tests.support.torch_devices import torch_device

# --- sums in folds ----------------------------------------------------------------------------------------------


@cache
def fold_case(name: str, scale: float, band: Band, shape: tuple[int, int]) -> tuple[Case, list[Any], dict[bool, Any]]:
    """Return a case, its factors, and its folds by row and by column, plain and squared."""
    case = random_case(name, shape, band, scale)
    factors = [ORACLE.half_powers(top) for top in case.maxima]
    folds = {
        squared: ORACLE.folded_sums(case.tiles, band, BOTH, squared, sigmas(61), *factors) for squared in (False, True)
    }
    return case, factors, folds


@pytest.mark.parametrize("name", TYPES)
def test_folds_are_those_of_the_definition_to_the_last_bit(norms: Norms, name: str) -> None:
    scales = (1.0, *magnitudes_of(TYPES[name]).values())
    bands, shapes = (WHOLE, BANDS["lower"], BANDS["narrow"]), ((23, 17), (1, 61))
    wanted = (BOTH, ("rows",), ("columns",), ())
    every = product(scales, bands, shapes, (False, True), wanted)
    cases = norms.some(every, len(name), host=5, threads=11, torch=7, triton=37)
    for turn, (scale, band, shape, squared, wants) in enumerate(cases):
        case, factors, exact = fold_case(name, scale, band, shape)
        mine = [f if want in wants else np.zeros(0) for want, f in zip(BOTH, factors)]
        tiles = case.laid(norms.layouts[turn % len(norms.layouts)]).tiles
        found = norms.folded_sums(tiles, band, wants, squared, sigmas(61), *mine)
        with note_case(scale=scale, band=band, shape=shape, squared=squared, wants=wants):
            for want, folds, right in zip(BOTH, found, exact[squared]):
                np.testing.assert_array_equal(folds, right if want in wants else right[:, :0])


def test_more_folds_than_a_launch_takes_are_those_of_the_definition(rng: Any, norms: Norms) -> None:
    tile, factors = one_tile(rng.random((19, 23))), [np.full(size, 0.5) for size in (19, 23)]
    task = ([tile], WHOLE, BOTH, False, [1.5 * 2.0 ** (37 - 6 * k) for k in range(6)], *factors)
    for found, exact in zip(norms.folded_sums(*task), ORACLE.folded_sums(*task)):
        np.testing.assert_array_equal(found, exact)
        assert (found != 0).any(axis=1).all(), "each fold has something"


def test_folds_have_the_same_bits_in_any_order_of_anything(rng: Any, norms: Norms) -> None:
    m, n = (17, 19) if norms.backend.on_torch else (131, 139)
    for name, squared in norms.some(product(TYPES, (False, True)), torch=1, triton=7):
        dtype = TYPES[name]
        values = random_values(rng, (m, n), dtype) * rng.choice([1, 0.5, 0.125], (m, n)).astype(dtype)
        by_row, by_column = folds(norms, [one_tile(values)], squared, m, n)

        down, right = rng.permutation(m), rng.permutation(n)
        others = {
            layout: ([one_tile(values, WHOLE, layout)], by_row, by_column)
            for layout in norms.some(norms.layouts[1:], torch=3, triton=5)
        }
        tiles = ragged_tiles(rng, values, WHOLE, (3, 1, m - 4), (7, n - 7), norms.layouts)
        others["in tiles"] = tiles, by_row, by_column
        others["in another order"] = [one_tile(values[down][:, right])], by_row[:, down], by_column[:, right]
        others["transposed"] = [one_tile(values.T)], by_column, by_row
        for how, (tiles, rows, columns) in others.items():
            sums = folds(norms, tiles, squared, len(rows[0]), len(columns[0]))
            with note_case(name=name, squared=squared, how=how):
                np.testing.assert_array_equal(sums[0], rows)
                np.testing.assert_array_equal(sums[1], columns)


def folds(norms: Norms, tiles: Sequence[Tile], squared: bool, rows: int, columns: int) -> list[Any]:
    """Return the folds by row and by column that deterministic norms use."""
    factors = [norms.apply("half_powers", top) for top in norms.row_column_max(tiles, WHOLE, BOTH, rows, columns)]
    return norms.folded_sums(tiles, WHOLE, BOTH, squared, sigmas(139), *factors)


def test_folds_of_several_threads_have_the_bits_of_one(rng: Any) -> None:
    serial, several = map(norms_of, HOST)
    for dtype in TYPES.values():
        values = random_values(rng, (431, 353), dtype)
        tile, factors = one_tile(values / dtype.type(8)), (np.ones(431), np.ones(353))
        assert tile.A.nbytes > tile_table.SERIAL_BELOW
        for squared in (False, True):
            task = ([tile], WHOLE, BOTH, squared, sigmas(431), *factors)
            for mine, same in zip(several.folded_sums(*task), serial.folded_sums(*task)):
                np.testing.assert_array_equal(mine, same)


@pytest.mark.parametrize("name", ["reference", *HOST, *TORCH])
def test_folds_add_up_to_the_sum(rng: Any, name: str) -> None:
    norms = norms_of(name)
    cases = list(product((1, 2, 3, 100, 4097), (1.0, 1e300, 1e-300, 5e-322), (False, True)))
    if name in ("reference", "torch with Triton"):  # these are slow: test many terms at one scale only
        cases = [(terms, scale, squared) for terms, scale, squared in cases if terms < 4097 or scale == 1.0]
    for terms, scale, squared in cases:
        case = case_of(rng.standard_normal((terms, 1)) * scale)
        top = np.array([case.parts.top])
        f = norms.apply("half_powers", top)
        _, found = norms.folded_sums(case.tiles, WHOLE, ("columns",), squared, sigmas(terms), np.zeros(0), f)
        value = norms.apply("unfolded", found, f, top, squared)[0]
        right = root(*case.parts.squares.tolist()) if squared else case.parts.by_column[0]
        # Each of up to four folds is added with one rounding, entry and root cost three, and the omitted rest is
        # 2^-58 of the largest term; a denormal result is rounded to a multiple of the smallest number.
        with note_case(terms=terms, scale=scale, squared=squared):
            assert abs(value - right) <= 8 * U * right + 2.0**-1074


def awkward(rng: Any) -> Any:
    """Return zero, Inf, NaN, powers of two with their neighbors, and numbers from the whole range."""
    powers = np.ldexp(1.0, np.array([-1074, -1073, -1022, -1021, -3, -2, -1, 0, 1, 2, 3, 1022, 1023]))
    random = np.ldexp(rng.random(50) + 0.5, rng.integers(-1073, 1023, 50))
    return np.concatenate([[0.0, np.inf, np.nan, np.finfo(np.float64).max], powers, np.nextafter(powers, 0.0), random])


def test_half_powers_are_the_least_even_ones_that_bring_every_maximum_to_1_at_most(rng: Any, norms: Norms) -> None:
    maxima = awkward(rng)
    usable = np.isfinite(maxima) & (maxima > 0)
    for factors in (norms.apply("half_powers", maxima), ORACLE.half_powers(maxima)):
        assert (np.frexp(factors)[0] == 0.5).all(), "powers of two, so that scaling is exact"
        assert (factors[~usable] == 1.0).all()
        assert (maxima[usable] * factors[usable] * factors[usable] <= 1.0).all()
        assert (maxima[usable] * factors[usable] * factors[usable] > 0.125).all()
        np.testing.assert_array_equal(factors, ORACLE.half_powers(maxima))


def test_unfolding_divides_by_the_factors_and_keeps_what_is_not_a_number(rng: Any, norms: Norms) -> None:
    maxima = awkward(rng)
    factors, sums = ORACLE.half_powers(maxima), rng.random((3, len(maxima))) * [[1.0], [2.0**-30], [2.0**-60]]
    for squared in (False, True):
        actual = norms.apply("unfolded", sums, factors, maxima, squared)
        exact = ORACLE.unfolded(sums, factors, maxima, squared)
        np.testing.assert_allclose(actual, exact, rtol=4 * U, atol=2.0**-1074)  # three roundings, or half a denormal
        for value in (0.0, np.inf, np.nan):
            np.testing.assert_equal(actual[np.isnan(maxima) if value != value else maxima == value], value)


# --- other operations -------------------------------------------------------------------------------------------


def test_maxima_of_the_array_namespaces_let_nan_win(rng: Any, norms: Norms) -> None:
    """Norms rely on it: maximum and max return NaN if there is one, and also hypot if the other number is finite.

    Next to fp64's largest number, hypot on a GPU may overflow, because its error is up to two units in the last place.
    """
    xp, there, here = norms.kernels.xp, norms.backend.array, norms.backend.numpy
    numbers = awkward(rng)
    x, y = (part.ravel() for part in np.meshgrid(numbers, numbers))
    expected = [math.nan if math.isnan(a) or math.isnan(b) else max(a, b) for a, b in zip(x, y)]
    np.testing.assert_array_equal(here(xp.maximum(there(x), there(y))), expected)
    for values in ([0.0], [1.0, np.inf], [np.nan, np.inf], [np.inf, np.nan, 1.0], [3.0, 4.0]):
        expected = math.nan if any(map(math.isnan, values)) else max(values)
        np.testing.assert_equal(float(xp.max(there(np.array(values)))), expected)
    ones = np.arange(len(numbers)) % 2.0
    expected = [math.hypot(*pair) for pair in zip(numbers, ones)]
    actual, end = here(xp.hypot(there(numbers), there(ones))), np.finfo(float).max
    if norms.backend.on_gpu:
        actual = np.where((np.array(expected) > end * (1 - 4 * U)) & (actual == np.inf), expected, actual)
    np.testing.assert_allclose(actual, expected, rtol=4 * U, atol=2.0**-1074)


def test_reading_all_goes_over_every_tile_and_changes_none(rng: Any, norms: Norms) -> None:
    shapes = ((3, 5), (10, 23), (0, 2)) if norms.backend.on_torch else ((3, 5), (100, 131), (0, 2))
    for turn, (name, dtype) in enumerate(TYPES.items()):
        cases = norms.some(product(shapes, norms.layouts), turn, torch=1, triton=len(FORWARD))
        tiles = [one_tile(random_values(rng, shape, dtype), WHOLE, layout) for shape, layout in cases]
        before = [tile.A.tobytes() for tile in tiles]
        there = norms.there(tiles)
        norms.kernels.read_all(there)
        assert [norms.backend.numpy(tile.A).tobytes() for tile in there] == before, name


def test_matrices_are_made_and_filled(rng: Any, norms: Norms) -> None:
    for (name, dtype), order, (m, n) in product(TYPES.items(), "CF", ((0, 4), (1, 1), (7, 13))):
        real, imaginary = rng.standard_normal((m, n)), rng.standard_normal((m, n))
        expected = (real + 1j * imaginary if dtype.kind == "c" else real).astype(dtype)
        for kernels, there, here in (
            (norms.kernels, norms.backend.array, norms.backend.numpy),
            (ORACLE, np.asarray, np.asarray),
        ):
            A = kernels.empty(m, n, name, order)
            kernels.set_parts(A, there(real), there(imaginary) if dtype.kind == "c" else None)
            actual = here(A)
            assert (actual.shape, actual.dtype) == ((m, n), dtype)
            assert actual.tobytes() == expected.tobytes()
            if kernels is ORACLE or not norms.backend.on_torch:
                assert actual.flags[f"{order}_CONTIGUOUS"]
            else:
                assert (A if order == "C" else A.T).is_contiguous()


# --- sums for the checks of norms -------------------------------------------------------------------------------


def exact_pair(pair: Any) -> list[Fraction]:
    """Return the exact sum of high and low."""
    return [Fraction(float(high)) + Fraction(float(low)) for high, low in pair.T]


def agree_in_doubled_precision(actual: Any, exact: Any, terms: int) -> None:
    """Check both parts to (n·u)², and 2^-98 for the few operations on each entry; high is the sum rounded once."""
    assert actual.shape == exact.shape
    for mine, right, high in zip(exact_pair(actual), exact_pair(exact), actual[0]):
        assert abs(mine - right) <= right * Fraction((terms * U) ** 2 + 2.0**-98)
        assert float(mine) == high


@cache
def extended_case(name: str, shape: tuple[int, int], band: Band) -> tuple[Case, ExtendedParts]:
    case = random_case(name, shape, band)
    return case, ORACLE.extended_pass(case.tiles, band, *shape)


def test_extended_passes_are_right_to_twice_as_many_digits(norms: Norms) -> None:
    bands = (WHOLE, BANDS["lower"], BANDS["narrow"], BANDS["empty"])
    kinds = [*product(((23, 17), (0, 3)), bands), ((2, 1103), WHOLE), ((2, 1103), Band(0, 1050))]
    cases = [(name, *kind) for name, kind in product(TYPES, kinds)]
    for turn, (name, (m, n), band) in enumerate(norms.some(cases, torch=5, triton=11)):
        layout = ("by columns", "strided")[turn % 2]
        case, exact = extended_case(name, (m, n), band)
        parts = norms.extended_pass(case.laid(layout).tiles, band, m, n)
        with note_case(name=name, shape=(m, n), band=band, layout=layout):
            assert parts.entries == exact.entries == band.entries(m, n)
            agree(parts.top, exact.top, case.tiles, terms=1)
            agree_in_doubled_precision(parts.squares, exact.squares, max(m * n, 1))
            agree_in_doubled_precision(parts.by_row, exact.by_row, n)
            agree_in_doubled_precision(parts.by_column, exact.by_column, m)


def test_paired_sums_keep_what_is_rounded_off(rng: Any, norms: Norms) -> None:
    terms = [rng.standard_normal((3, 5)) ** 2, 2.0**-60 * rng.random((40, 5)), 2.0**40 * rng.random((1, 5))]
    exact = [sum(Fraction(float(x)) for term in terms for x in term[:, j]) for j in range(5)]
    there = [norms.backend.array(term) for term in terms]
    for found in (norms.backend.numpy(norms.kernels.paired_sum(there)), ORACLE.paired_sum(terms)):
        assert exact_pair(found) == pytest.approx(exact, rel=(44 * U) ** 2)
        assert [float(x) for x in exact] == found[0].tolist()


def test_the_reference_reads_only_the_band_and_sums_exactly() -> None:
    A = np.array([[1.0, np.nan, np.nan], [2.0**53, 1.0, np.nan], [1.0, 2.0**-60, 3.0]])
    tile = Tile(A, consecutive(3), consecutive(3), 0, 0)
    assert not entries(tile, Band(ENDLESS, 0))[0, 1:].any()
    parts = ORACLE.norm_pass([tile], Band(ENDLESS, 0), WANTS, 3, 3)
    assert parts.top == 2.0**53
    assert parts.by_row.tolist() == [1.0, 2.0**53, 4.0]  # 2^53 + 1 is a tie, and rounds to the even number
    assert parts.by_column.tolist() == [2.0**53 + 2.0, 1.0, 3.0]
    np.testing.assert_array_equal(magnitude(np.array([complex(np.inf, np.nan), -3 + 4j])), [np.nan, 5.0])


# --- tiles in programs, and on several devices -------------------------------------------------------------------


def test_no_two_partial_sums_of_a_line_or_position_have_the_same_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any band: programs that add to the same positions have different slots."""
    for name, value in {"THREADS": 8, "LANES": 2, "WIDTH": 64, "PROGRAMS": 1, "MAX_LINES": 8}.items():
        monkeypatch.setattr(norm_table, name, value)
    shapes = [(consecutive(m), consecutive(n)) for m, n in ((97, 89), (300, 40), (40, 300))]
    shapes.append((block_cyclic(BlockCyclic(301, 3, 1, 2)), block_cyclic(BlockCyclic(211, 5, 2, 3))))
    for (rows, cols), band in product(shapes, [*BANDS.values(), Band(40, -20), Band(-30, 70)]):
        A = torch.zeros(rows.size, cols.size)
        for batch in norm_table.batches([Tile(A, rows, cols, 0, 0)], band, norm_table.MANY):
            check_slots(batch, rows, cols, band)


def check_slots(batch: Any, rows: IndexMap, cols: IndexMap, band: Band) -> None:
    met: dict[tuple[int, int], int] = {}
    C = batch.block.positions
    for d in range(batch.strips):
        first, last = d * batch.strip, min((d + 1) * batch.strip, rows.size) - 1
        low = cols.before(rows.to_global(first) - band.below)
        high = cols.before(rows.to_global(last) + band.above + 1)
        blocks = range(low // C, -(-high // C)) if low < high else range(0)
        assert len(blocks) <= batch.wide, "programs enough across"
        for block in blocks:
            assert met.setdefault((block, d % batch.deep), d) == d, "a slot of its own down"


@pytest.mark.parametrize("name", ["float64", "complex64", "bfloat16"])
def test_tiles_of_several_devices_are_summed_up_on_the_first(
    rng: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three devices share their memory. The position of a tile, which its shape identifies, selects its device."""
    heights, widths = (3, 1, 17, 2), (5, 19, 1, 4)
    values = random_values(rng, (sum(heights), sum(widths)), TYPES[name])
    tiles = ragged_tiles(rng, values, WHOLE, heights, widths, FORWARD)
    m, n = values.shape
    numbers = {tile.A.shape: (tile.row0 + tile.col0) % 3 for tile in tiles}
    devices = [torch_device() for _ in range(3)]
    monkeypatch.setattr(Device, "has", lambda self, x: devices[numbers[tuple(x.shape)]] is self)
    single = norms_of("torch")
    several = replace(single, kernels=TorchNorms(*devices))
    for band in (WHOLE, BANDS["strict lower"]):
        case = Case(tiles, band, m, n)
        for wants in SUBSETS:
            check_pass(several, case, wants)
        check_maxima(several, case)
        task = (tiles, band, BOTH, False, sigmas(n), np.full(m, 0.25), np.full(n, 0.25))
        for actual, expected in zip(several.folded_sums(*task), single.folded_sums(*task)):
            np.testing.assert_array_equal(actual, expected)
        actual, reference = several.extended_pass(tiles, band, m, n), ORACLE.extended_pass(tiles, band, m, n)
        assert (actual.entries, actual.top) == (reference.entries, pytest.approx(reference.top, rel=4 * U))
        agree_in_doubled_precision(actual.squares, reference.squares, m * n)
        agree_in_doubled_precision(actual.by_row, reference.by_row, n)
        agree_in_doubled_precision(actual.by_column, reference.by_column, m)
