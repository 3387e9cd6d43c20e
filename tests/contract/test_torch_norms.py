"""The norm kernels on torch tensors give what their definitions give, by torch's operations and by Triton's kernels.

On the CPU Triton's kernels are interpreted.  Blocks are so small that even small matrices take several programs both
ways.  What lies outside the band, and between the entries of a strided tile, is NaN: whoever reads it shows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.kernels.contract.norms import NormParts, Tile
from mxpeak.kernels.torch import norm_check, norm_plain, norm_table
from mxpeak.kernels.torch.norm_devices import SeveralNorms
from mxpeak.kernels.torch.norms import TorchNorms
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive
from mxpeak.layout.structure import DIAGONAL, ENDLESS, WHOLE, Band
from mxpeak.solvers.exact_norms import sigmas
from mxpeak.solvers.norms import root
from tests.contract import test_norm_kernels as of_host
from tests.contract.test_norm_kernels import BANDS, ORACLE, TYPES, WANTS, agree, check_pass, random_values
from tests.support.roundoff import U
from tests.support.torch_devices import FORMS, WHERE, array, tensor, torch_device

#: How a matrix may lie in memory; torch has no negative strides.
LAYOUTS = [name for name in of_host.LAYOUTS if "backwards" not in name]
SUBSETS: list[set[str]] = [set(), {"max"}, {"squares"}, {"rows"}, {"columns"}, {"rows", "columns"}, set(WANTS)]


def tensors(tiles: Sequence[Tile]) -> list[Tile]:
    return [replace(tile, A=tensor(tile.A)) for tile in tiles]


class OnArrays:
    """Norms of tensors, of arrays: brought to the device as they lie."""

    def __init__(self, norms: TorchNorms):
        self.norms = norms

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        with np.errstate(all="ignore"):  # the interpreter computes with NumPy, which warns
            parts = self.norms.norm_pass(tensors(tiles), band, wants, rows, columns)
        return NormParts(parts.top, *map(array, (parts.squares, parts.by_row, parts.by_column)))

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> list[Any]:
        with np.errstate(all="ignore"):
            found = self.norms.row_column_max(tensors(tiles), band, wants, rows, columns)
        return [*map(array, found)]

    def folded_sums(self, tiles: Sequence[Tile], band: Band, wants: Any, squared: bool, constants: Any, *f: Any) -> Any:
        with np.errstate(all="ignore"):
            found = self.norms.folded_sums(tensors(tiles), band, wants, squared, constants, *map(tensor, f))
        return [*map(array, found)]

    def floats(self, vector: Any) -> list[float]:
        return self.norms.floats(tensor(vector))


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def norms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both forms, in small steps: 8 numbers of fp64 of 8 lines, as 2 times 4; of 3 tiles a launch."""
    for name, value in {"THREADS": 8, "LANES": 2, "WIDTH": 64, "PROGRAMS": 1, "MOST_LINES": 16, "BATCH": 3}.items():
        monkeypatch.setattr(norm_table, name, value)
    for module in (norm_plain, norm_check):
        monkeypatch.setattr(module, "STRIP", 100)
    return OnArrays(TorchNorms(torch_device(request.param)))


def check(norms: Any, tiles: Sequence[Tile], band: Band, rows: int, columns: int, turn: int = 0) -> None:
    """A pass for everything, one for a subset of it and the maxima, by turns."""
    exact = ORACLE.norm_pass(tiles, band, WANTS, rows, columns)
    check_pass(norms, exact, tiles, band, WANTS, rows, columns)
    if turn % 3:
        check_pass(norms, exact, tiles, band, SUBSETS[turn % len(SUBSETS)], rows, columns)
    else:
        check_maxima(norms, tiles, band, rows, columns, ("rows", "columns")[: turn % 2 + 1])


def check_maxima(
    norms: Any, tiles: Sequence[Tile], band: Band, rows: int, columns: int, wants: Collection[str]
) -> None:
    expected = ORACLE.row_column_max(tiles, band, wants, rows, columns)
    found = norms.row_column_max(tiles, band, wants, rows, columns)
    for mine, right in zip(found, expected):
        if tiles and tiles[0].A.dtype.kind == "c":
            agree(mine, right, tiles, terms=1)
        else:
            np.testing.assert_array_equal(mine, right)


# --- passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TYPES)
def test_a_pass_gives_what_its_definition_gives(rng: Any, norms: Any, name: str, layout: str) -> None:
    shapes = [(23, 37), (1, 1), (1, 131), (131, 1), (3, 67), (61, 5), (0, 3), (3, 0), (37, 23)]
    for turn, ((m, n), band) in enumerate(zip(shapes, BANDS.values())):
        check(norms, [of_host.one_tile(random_values(rng, (m, n), TYPES[name]), band, layout)], band, m, n, turn)


@pytest.mark.parametrize("layout", ["by rows", "by columns"])
def test_only_what_is_wanted_is_given(rng: Any, norms: Any, layout: str) -> None:
    tile = of_host.one_tile(random_values(rng, (23, 19), TYPES["float32"]), WHOLE, layout)
    exact = ORACLE.norm_pass([tile], WHOLE, WANTS, 23, 19)
    for wants in SUBSETS:
        check_pass(norms, exact, [tile], WHOLE, wants, 23, 19)


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("shape", [(41, 29), (29, 41), (7, 90), (90, 7)])
def test_only_blocks_that_meet_the_band_are_gone_through(rng: Any, norms: Any, shape: Any, band: str) -> None:
    for turn, name in enumerate(("float64", "float16")):
        for layout in ("by rows", "by columns"):
            tile = of_host.one_tile(random_values(rng, shape, TYPES[name]), BANDS[band], layout)
            check(norms, [tile], BANDS[band], *shape, turn)


@pytest.mark.parametrize("layout", ["by rows", "by columns"])
@pytest.mark.parametrize("name", ["float64", "float16"])
def test_a_block_cyclic_part_tests_the_band_on_global_indices(rng: Any, norms: Any, name: str, layout: str) -> None:
    m, n, mb, nb, P, Q = 43, 61, 3, 5, 2, 3
    values = random_values(rng, (m, n), TYPES[name])
    for turn, band in enumerate(BANDS.values()):
        p, q = turn % P, turn % Q
        rows, cols = block_cyclic(BlockCyclic(m, mb, p, P)), block_cyclic(BlockCyclic(n, nb, q, Q))
        local = of_host.poisoned(values[np.ix_(ORACLE.places(rows), ORACLE.places(cols))], rows, cols, band)
        tile = Tile(of_host.LAYOUTS[layout](local), rows, cols, 0, 0)
        check(norms, [tile], band, rows.size, cols.size, turn)


@pytest.mark.parametrize("name", TYPES)
def test_each_tile_is_added_where_it_belongs(rng: Any, norms: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_host, "LAYOUTS", {name: of_host.LAYOUTS[name] for name in LAYOUTS})
    heights, widths = (3, 1, 0, 17), (5, 19, 1)
    values = random_values(rng, (sum(heights), sum(widths)), TYPES[name])
    for turn, band in enumerate((Band(ENDLESS, -1), Band(2, 3))):
        tiles = of_host.ragged_tiles(rng, values, band, heights, widths)
        check(norms, tiles, band, *values.shape, turn)
        some = [replace(t, row0=t.row0 + 2, col0=t.col0 + 3) for t in tiles[:7]]  # as a rank sees it that has no more
        check(norms, some, band, values.shape[0] + 4, values.shape[1] + 5, turn)
    check(norms, [], WHOLE, 3, 4)


def test_tiles_whose_lines_overlap_in_part_are_all_added(rng: Any, norms: Any) -> None:
    spans = ((0, 9), (4, 11), (4, 3), (13, 7))
    tiles = []
    for first, size in spans:
        values = random_values(rng, (size, 5), TYPES["float64"])
        tiles.append(replace(of_host.one_tile(values, WHOLE), row0=first, col0=first))
    check(norms, tiles, WHOLE, 20, 20)


def test_an_entry_that_is_repeated_without_being_stored_again_counts_each_time(norms: Any) -> None:
    for value, shape in product((1.5, np.float32(0.25), 3 - 4j), ((1, 1), (5, 9), (3, 50))):
        A = np.broadcast_to(np.array(value), shape).copy()
        exact = ORACLE.norm_pass([of_host.one_tile(A, WHOLE)], WHOLE, WANTS, *shape)
        rows, cols = consecutive(shape[0]), consecutive(shape[1])
        tile = Tile(torch.tensor(value, dtype=tensor(A).dtype, device=WHERE).expand(shape), rows, cols, 0, 0)
        parts = norms.norms.norm_pass([tile], WHOLE, WANTS, *shape)
        for found, right in ((parts.top, exact.top), (parts.by_row, exact.by_row), (parts.by_column, exact.by_column)):
            agree(array(found), right, [], terms=max(shape))


# --- numbers at the ends of the range, and no numbers -----------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_neither_large_nor_small_numbers_are_lost(rng: Any, norms: Any, name: str) -> None:
    dtype, (m, n) = TYPES[name], (9, 17)
    scales = of_host.magnitudes_of(dtype)
    for turn, scale in enumerate(scales.values()):
        band = (WHOLE, DIAGONAL)[turn % 2]
        check(norms, [of_host.one_tile(random_values(rng, (m, n), dtype, scale), band)], band, m, n, turn)
    for turn in range(2):  # every entry at its own scale
        each = rng.choice([0.0, 1.0, *scales.values()], (m, n))
        values = random_values(rng, (m, n), np.dtype(np.complex128 if dtype.kind == "c" else np.float64))
        with np.errstate(over="ignore", under="ignore"):
            check(norms, [of_host.one_tile((values * each).astype(dtype), WHOLE)], WHOLE, m, n, turn)


@pytest.mark.parametrize("name", ["float64", "complex128"])
def test_sums_beyond_the_largest_number_are_infinite_but_the_squares_keep_their_root(norms: Any, name: str) -> None:
    tile = of_host.one_tile(np.full((5, 7), 1.7e308, TYPES[name]), WHOLE)
    check(norms, [tile], WHOLE, 5, 7)
    parts = norms.norm_pass([tile], WHOLE, WANTS, 5, 7)
    assert parts.top == 1.7e308
    assert np.isinf(parts.by_row).all()
    assert np.isfinite(parts.squares).all(), "in three parts they go on to be added over ranks"


@pytest.mark.parametrize("name", TYPES)
def test_nan_wins_over_inf_and_inf_over_numbers(rng: Any, norms: Any, name: str) -> None:
    dtype, (m, n) = TYPES[name], (5, 9)
    strange = of_host.strange(dtype)
    for turn, first in enumerate(strange):
        for second in (None, strange[(turn * 5 + 1) % len(strange)]):
            values = random_values(rng, (m, n), dtype)
            for value in (first, second):
                if value is not None:
                    values[rng.integers(m), rng.integers(n)] = value
            check(norms, [of_host.one_tile(values, WHOLE)], WHOLE, m, n, turn)


@pytest.mark.parametrize("name", TYPES)
def test_nan_reaches_its_sums_from_every_place(norms: Any, name: str) -> None:
    m, n = 9, 11
    for i, j in ((0, 0), (8, 10), (3, 7), (7, 8), (4, 4)):
        values = np.zeros((m, n), TYPES[name])
        values[(i + 1) % m, j], values[i, j] = np.inf, np.nan
        parts = norms.norm_pass([of_host.one_tile(values, WHOLE)], WHOLE, WANTS, m, n)
        assert math.isnan(parts.top)
        assert math.isnan(root(*norms.floats(parts.squares)))
        assert np.isnan(parts.by_row).tolist() == [k == i for k in range(m)]
        assert np.isnan(parts.by_column).tolist() == [k == j for k in range(n)]
        assert np.isinf(parts.by_row).tolist() == [k == (i + 1) % m for k in range(m)]


# --- sums in folds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_folds_are_those_of_the_definition_to_the_last_bit(rng: Any, norms: Any, name: str, squared: bool) -> None:
    dtype = TYPES[name]
    scales = (1.0, *of_host.magnitudes_of(dtype).values())
    for turn, scale in enumerate(scales):
        (m, n), band = (((11, 23), WHOLE), ((23, 11), Band(ENDLESS, 0)), ((1, 61), WHOLE))[turn % 3]
        tile = of_host.one_tile(random_values(rng, (m, n), dtype, scale), band, LAYOUTS[turn % len(LAYOUTS)])
        maxima = ORACLE.row_column_max([tile], band, ("rows", "columns"), m, n)
        factors = [ORACLE.half_powers(top) for top in maxima]
        for wants in (("rows", "columns"), ("rows",), ("columns",))[turn % 3 :: 2]:
            mine = [f if want in wants else np.zeros(0) for want, f in zip(("rows", "columns"), factors)]
            task = ([tile], band, wants, squared, sigmas(61), *mine)
            for found, exact in zip(norms.folded_sums(*task), ORACLE.folded_sums(*task)):
                np.testing.assert_array_equal(found, exact)


def test_more_folds_than_a_launch_takes_are_those_of_the_definition(rng: Any, norms: Any) -> None:
    tile, f = of_host.one_tile(rng.random((19, 23)), WHOLE), [np.full(size, 0.5) for size in (19, 23)]
    task = ([tile], WHOLE, ("rows", "columns"), False, [1.5 * 2.0 ** (37 - 6 * k) for k in range(6)], *f)
    for found, exact in zip(norms.folded_sums(*task), ORACLE.folded_sums(*task)):
        np.testing.assert_array_equal(found, exact)
        assert (found != 0).any(axis=1).all(), "each fold has something"


def test_folds_of_tiles_have_the_same_bits_as_those_of_the_whole(
    rng: Any, norms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_host, "LAYOUTS", {name: of_host.LAYOUTS[name] for name in LAYOUTS})
    values = random_values(rng, (23, 29), TYPES["complex64"])
    f, wants = [np.ones(23), np.ones(29)], ("rows", "columns")
    whole = ORACLE.folded_sums([of_host.one_tile(values / 8, WHOLE)], WHOLE, wants, True, sigmas(29), *f)
    tiles = of_host.ragged_tiles(rng, values / 8, WHOLE, (3, 1, 17, 2), (5, 19, 1, 4))
    for found, exact in zip(norms.folded_sums(tiles, WHOLE, wants, True, sigmas(29), *f), whole):
        np.testing.assert_array_equal(found, exact)


# --- the small operations ---------------------------------------------------------------------------------------


@pytest.fixture
def small() -> TorchNorms:
    return TorchNorms(torch_device())


def test_half_powers_are_the_least_even_ones(rng: Any, small: TorchNorms) -> None:
    maxima = of_host.awkward(rng)
    np.testing.assert_array_equal(array(small.half_powers(tensor(maxima))), ORACLE.half_powers(maxima))


def test_unfolding_divides_by_the_factors_and_keeps_what_is_no_number(rng: Any, small: TorchNorms) -> None:
    maxima = of_host.awkward(rng)
    factors, sums = ORACLE.half_powers(maxima), rng.random((3, len(maxima))) * [[1.0], [2.0**-30], [2.0**-60]]
    for squared in (False, True):
        found = array(small.unfolded(*map(tensor, (sums, factors, maxima)), squared))
        exact = ORACLE.unfolded(sums, factors, maxima, squared)
        np.testing.assert_allclose(found, exact, rtol=4 * U, atol=2.0**-1074)  # three roundings, or half a denormal
        for value in (0.0, np.inf, np.nan):
            np.testing.assert_equal(found[np.isnan(maxima) if value != value else maxima == value], value)


def test_vectors_are_taken_spread_and_met_at_their_places(rng: Any, small: TorchNorms) -> None:
    cases = [
        consecutive(0),
        consecutive(7, 3),
        block_cyclic(BlockCyclic(23, 3, 1, 2)),
        block_cyclic(BlockCyclic(23, 4, 0, 3)),
    ]
    for places in cases:
        at, known = small.places(places), ORACLE.places(places)
        assert at.tolist() == list(known)
        values, full, matrix = rng.random(places.size), rng.random(29), rng.random((3, places.size))
        for x in (values, matrix):
            np.testing.assert_array_equal(array(small.spread(tensor(x), at, 29)), ORACLE.spread(x, known, 29))
        np.testing.assert_array_equal(array(small.taken(tensor(full), at)), ORACLE.taken(full, known))
        for end in (0, 5, 11, 40):
            np.testing.assert_array_equal(array(small.below(at, end)), ORACLE.below(known, end))
    for rows, cols in product(cases, cases):
        x, y = rng.random(rows.size), rng.random(cols.size)
        found = small.meeting(tensor(x), small.places(rows), tensor(y), small.places(cols))
        np.testing.assert_array_equal(array(found), ORACLE.meeting(x, ORACLE.places(rows), y, ORACLE.places(cols)))


def test_larger_largest_and_hypot_let_nan_win(rng: Any, small: TorchNorms) -> None:
    numbers = of_host.awkward(rng)
    x, y = (part.ravel() for part in np.meshgrid(numbers, numbers))
    a, b = tensor(x), tensor(y)
    np.testing.assert_array_equal(array(small.larger(a, b)), ORACLE.larger(x, y))
    found, exact = array(small.hypot(a, b)), ORACLE.hypot(x, y)
    np.testing.assert_allclose(found, exact, rtol=4 * U, atol=2.0**-1074)  # each is within a unit, and a denormal
    for values in ([], [0.0], [1.0, np.inf], [np.nan, np.inf], [np.inf, np.nan, 1.0], [3.0, 4.0]):
        vector = small.vector_of(values)
        assert small.floats(vector) == pytest.approx(values, nan_ok=True)
        np.testing.assert_equal(small.largest(vector), ORACLE.largest(ORACLE.vector_of(values)))


@pytest.mark.parametrize("name", TYPES)
def test_the_real_part_is_a_view(rng: Any, norms: Any, name: str) -> None:
    tile = of_host.one_tile(random_values(rng, (5, 7), TYPES[name]), WHOLE, "strided")
    (mine,) = tensors([tile])
    part = norms.norms.real_part(mine)
    assert part.A.data_ptr() == mine.A.data_ptr()
    assert not part.A.is_complex()
    found = norms.norms.norm_pass([part], DIAGONAL, WANTS, 5, 7)
    exact = ORACLE.norm_pass([ORACLE.real_part(tile)], DIAGONAL, WANTS, 5, 7)
    assert found.top == exact.top
    np.testing.assert_array_equal(array(found.by_row), exact.by_row)


@pytest.mark.parametrize("name", TYPES)
def test_reading_all_takes_every_tile_and_changes_none(rng: Any, norms: Any, name: str) -> None:
    tiles = [of_host.one_tile(random_values(rng, shape, TYPES[name]), WHOLE, layout)
             for shape, layout in product(((3, 5), (10, 23), (0, 2)), LAYOUTS)]  # fmt: skip
    copies = [replace(tile, A=tile.A.copy()) for tile in tiles]
    there = tensors(tiles)
    norms.norms.read_all(there)
    assert [array(mine.A).tobytes() for mine in there] == [tile.A.tobytes() for tile in copies]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", TYPES)
def test_matrices_are_made_and_filled(rng: Any, small: TorchNorms, name: str, order: str) -> None:
    for m, n in ((0, 4), (1, 1), (7, 13)):
        real, imaginary = rng.standard_normal((m, n)), rng.standard_normal((m, n))
        expected = (real + 1j * imaginary if TYPES[name].kind == "c" else real).astype(TYPES[name])
        A = small.empty(m, n, name, order)
        assert A.shape == (m, n)
        assert (A if order == "C" else A.T).is_contiguous()
        small.put(A, tensor(real), tensor(imaginary) if TYPES[name].kind == "c" else None)
        assert torch.equal(A, tensor(expected))


# --- what norms are checked with --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_extended_passes_are_right_to_twice_as_many_digits(rng: Any, norms: Any, name: str) -> None:
    for (m, n), band in product(((31, 17), (2, 203), (0, 3)), (WHOLE, Band(ENDLESS, 0), Band(2, 3), Band(0, -1))):
        tiles = [of_host.one_tile(random_values(rng, (m, n), TYPES[name]), band, "by columns")]
        exact, found = ORACLE.extended_pass(tiles, band, m, n), norms.norms.extended_pass(tensors(tiles), band, m, n)
        assert found.entries == exact.entries == band.entries(m, n)
        agree(found.top, exact.top, tiles, terms=1)
        of_host.agree_in_doubled_precision(array(found.squares), exact.squares, max(m * n, 1))
        of_host.agree_in_doubled_precision(array(found.by_row), exact.by_row, n)
        of_host.agree_in_doubled_precision(array(found.by_column), exact.by_column, m)


def test_paired_sums_keep_what_is_rounded_off(rng: Any, small: TorchNorms) -> None:
    terms = [rng.standard_normal((3, 5)) ** 2, 2.0**-60 * rng.random((40, 5)), 2.0**40 * rng.random((1, 5))]
    found, exact = array(small.paired_sum([*map(tensor, terms)])), ORACLE.paired_sum(terms)
    of_host.agree_in_doubled_precision(found, exact, 44)


# --- tiles in programs ------------------------------------------------------------------------------------------


def test_no_two_partial_sums_of_a_line_or_place_have_the_same_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the band: of the programs that reach it, those that meet the same places have different slots."""
    for name, value in {"THREADS": 8, "LANES": 2, "WIDTH": 64, "PROGRAMS": 1, "MOST_LINES": 8}.items():
        monkeypatch.setattr(norm_table, name, value)
    shapes = [(consecutive(m), consecutive(n)) for m, n in ((97, 89), (300, 40), (40, 300))]
    shapes.append((block_cyclic(BlockCyclic(301, 3, 1, 2)), block_cyclic(BlockCyclic(211, 5, 2, 3))))
    for (rows, cols), band in product(shapes, [*BANDS.values(), Band(40, -20), Band(-30, 70)]):
        A = torch.zeros(rows.size, cols.size)
        for batch in norm_table.batches([Tile(A, rows, cols, 0, 0)], band, norm_table.MANY):
            check_slots(batch, rows, cols, band)


def check_slots(batch: Any, rows: IndexMap, cols: IndexMap, band: Band) -> None:
    met: dict[tuple[int, int], int] = {}
    C = batch.block.places
    for d in range(batch.strips):
        first, last = d * batch.strip, min((d + 1) * batch.strip, rows.size) - 1
        low = cols.before(rows.to_global(first) - band.below)
        high = cols.before(rows.to_global(last) + band.above + 1)
        blocks = range(low // C, -(-high // C)) if low < high else range(0)
        assert len(blocks) <= batch.wide, "programs enough across"
        for block in blocks:
            assert met.setdefault((block, d % batch.deep), d) == d, "a slot of its own down"


# --- several devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float64", "complex64", "bfloat16"])
def test_tiles_of_several_devices_are_summed_up_on_the_first(
    rng: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices are told apart by a key; here by where in the matrix a tile lies, which its shape tells."""
    monkeypatch.setattr(of_host, "LAYOUTS", {name: of_host.LAYOUTS[name] for name in LAYOUTS})
    heights, widths = (3, 1, 17, 2), (5, 19, 1, 4)
    values = random_values(rng, (sum(heights), sum(widths)), TYPES[name])
    tiles = of_host.ragged_tiles(rng, values, WHOLE, heights, widths)
    m, n = values.shape
    places = {tile.A.shape: (tile.row0 + tile.col0) % 3 for tile in tiles}
    devices = {key: torch_device() for key in range(3)}
    several = OnArrays(SeveralNorms(devices, lambda A: places[tuple(A.shape)]))
    one = OnArrays(TorchNorms(devices[0]))
    for band in (WHOLE, Band(ENDLESS, -1)):
        exact = ORACLE.norm_pass(tiles, band, WANTS, m, n)
        for wants in SUBSETS:
            check_pass(several, exact, tiles, band, wants, m, n)
        check_maxima(several, tiles, band, m, n, ("rows", "columns"))
        task = (tiles, band, ("rows", "columns"), False, sigmas(n), np.full(m, 0.25), np.full(n, 0.25))
        for found, expected in zip(several.folded_sums(*task), one.folded_sums(*task)):
            np.testing.assert_array_equal(found, expected)
        found, known = several.norms.extended_pass(tensors(tiles), band, m, n), ORACLE.extended_pass(tiles, band, m, n)
        assert (found.entries, found.top) == (known.entries, pytest.approx(known.top, rel=4 * U))
        of_host.agree_in_doubled_precision(array(found.squares), known.squares, m * n)
        of_host.agree_in_doubled_precision(array(found.by_row), known.by_row, n)
        of_host.agree_in_doubled_precision(array(found.by_column), known.by_column, m)
