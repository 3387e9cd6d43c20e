"""Every kernel of norms gives what its definition gives: all types, strides, bands, places, tiles and threads.

What lies outside the band, and between the entries of a strided tile, is NaN: whoever reads it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from itertools import accumulate, combinations, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxpeak.kernels.contract.norms import NormKernels, NormParts, Tile
from mxpeak.kernels.host import norm_tiles
from mxpeak.kernels.host.norm_tiles import Norms
from mxpeak.kernels.host.team import Team
from mxpeak.kernels.reference.norms import ReferenceNorms, entries, magnitude
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive
from mxpeak.layout.structure import DIAGONAL, ENDLESS, WHOLE, Band
from mxpeak.solvers.exact_norms import sigmas
from mxpeak.solvers.norms import root
from tests.support.roundoff import U

TYPES = {
    **{name: np.dtype(name) for name in ("float64", "float32", "complex128", "complex64", "float16")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
BANDS = {
    "whole": WHOLE,
    "lower": Band(ENDLESS, 0),
    "strict lower": Band(ENDLESS, -1),
    "upper": Band(0, ENDLESS),
    "strict upper": Band(-1, ENDLESS),
    "hessenberg": Band(1, ENDLESS),
    "narrow": Band(2, 3),
    "beside the diagonal": Band(-2, 5),
    "diagonal": DIAGONAL,
    "empty": Band(0, -1),
}
WANTS = ("max", "squares", "rows", "columns")
SUBSETS = [set(subset) for size in range(5) for subset in combinations(WANTS, size)]
ORACLE: NormKernels = ReferenceNorms()
TEAMS: list[NormKernels] = [Norms(Team(threads)) for threads in (1, 2, 3)]


# --- matrices ---------------------------------------------------------------------------------------------------


def random_values(rng: Any, shape: tuple[int, int], dtype: Any, scale: float = 1.0) -> Any:
    with np.errstate(over="ignore", under="ignore"):
        x = rng.standard_normal(shape) * scale
        return (x + 1j * scale * rng.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else x.astype(dtype)


def empty(shape: tuple[int, int], dtype: Any) -> Any:
    return np.full(shape, np.nan, dtype)


def cut(values: Any, rows: int, columns: int, down: slice, right: slice, order: str) -> Any:
    """The values in a piece of a larger array that is NaN elsewhere."""
    m, n = values.shape
    larger = np.array(empty((rows * m + 5, columns * n + 5), values.dtype), order=order)
    piece = larger[down, right][:m, :n]
    piece[:] = values
    return piece


#: How a matrix may lie in memory.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "by rows": lambda x: np.array(x, order="C"),
    "by columns": lambda x: np.array(x, order="F"),
    "by padded rows": lambda x: cut(x, 1, 1, slice(2, None), slice(3, None), "C"),
    "by padded columns": lambda x: cut(x, 1, 1, slice(2, None), slice(3, None), "F"),
    "strided": lambda x: cut(x, 2, 3, slice(1, None, 2), slice(2, None, 3), "C"),
    "backwards": lambda x: cut(x, 1, 1, slice(None, None, -1), slice(None, None, -1), "C"),
    "backwards, strided, by columns": lambda x: cut(x, 3, 2, slice(None, None, -3), slice(None, None, -2), "F"),
}


def poisoned(values: Any, rows: IndexMap, cols: IndexMap, band: Band) -> Any:
    """The values with NaN outside the band."""
    i, j = np.array([rows.to_global(il) for il in range(rows.size)], np.int64), ORACLE.places(cols)
    offset = j[None, :] - i[:, None]
    return np.where((offset >= -band.below) & (offset <= band.above), values, values.dtype.type(np.nan))


def one_tile(values: Any, band: Band, layout: str = "by rows") -> Tile:
    rows, cols = consecutive(values.shape[0]), consecutive(values.shape[1])
    return Tile(LAYOUTS[layout](poisoned(values, rows, cols, band)), rows, cols, 0, 0)


def ragged_tiles(rng: Any, values: Any, band: Band, heights: Sequence[int], widths: Sequence[int]) -> list[Tile]:
    """A matrix in tiles that lie each in its own way, in any order."""
    m, n = values.shape
    A = poisoned(values, consecutive(m), consecutive(n), band)
    downs, rights = [0, *accumulate(heights)], [0, *accumulate(widths)]
    assert (downs[-1], rights[-1]) == (m, n)
    tiles = []
    for (i, h), (j, w) in product(zip(downs, heights), zip(rights, widths)):
        piece = LAYOUTS[rng.choice(list(LAYOUTS))](A[i : i + h, j : j + w])
        tiles.append(Tile(piece, consecutive(h, i), consecutive(w, j), i, j))
    return [tiles[k] for k in rng.permutation(len(tiles))]


# --- what must agree --------------------------------------------------------------------------------------------


def agree(found: Any, exact: Any, tiles: Sequence[Tile], *, terms: int) -> None:
    """Sums of so many terms within the bound of the contract, with b = 512; NaN where NaN, Inf where Inf.

    |x| of a complex x costs three roundings more.  Of complex128, entries so small that their squares vanish may
    count as nothing beside those of ordinary size, 2^450·2^-538 of them and less, so 2^-70 of the largest per term;
    where all are denormal, |x| is a multiple of the smallest number.
    """
    found, exact = np.asarray(found), np.asarray(exact)
    assert found.shape == exact.shape
    assert found.dtype == exact.dtype == np.float64
    relative = (512 + terms / 512 + 4) * U
    floor = 0.0
    if tiles and tiles[0].A.dtype == np.complex128:
        known = [magnitude(tile.A) for tile in tiles]
        largest = max((float(x[np.isfinite(x)].max(initial=0.0)) for x in known), default=0.0)
        floor = terms * (largest * 2.0**-70 + 2.0**-1074)
    with np.errstate(all="ignore"):
        same = (found == exact) | (np.isnan(found) & np.isnan(exact))
        near = np.abs(found - exact) <= relative * exact + floor
    assert (same | near).all(), (found[~(same | near)], exact[~(same | near)])


def check_pass(
    norms: NormKernels, exact: NormParts, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int,
    columns: int,
) -> None:  # fmt: skip
    """A pass for some wants gives those of a pass for all, and nothing else."""
    found = norms.norm_pass(tiles, band, wants, rows, columns)
    size = sum(tile.A.size for tile in tiles)
    if "max" not in wants:
        assert found.top == 0.0
    elif tiles and tiles[0].A.dtype.kind != "c":
        assert found.top == exact.top or (math.isnan(found.top) and math.isnan(exact.top))
    else:
        agree(found.top, exact.top, tiles, terms=1)
    assert len(found.squares) == 3
    if "squares" in wants:
        agree(root(*norms.floats(found.squares)), root(*ORACLE.floats(exact.squares)), tiles, terms=size)
    else:
        assert not np.any(found.squares)
    for want, mine, right in (("rows", found.by_row, exact.by_row), ("columns", found.by_column, exact.by_column)):
        agree(mine, right if want in wants else np.zeros(0), tiles, terms=max(rows, columns))


def check_every_pass(tiles: Sequence[Tile], band: Band, rows: int, columns: int, turn: int = 0) -> None:
    """Every subset of wants against the oracle, on one, two and three threads by turns."""
    exact = ORACLE.norm_pass(tiles, band, WANTS, rows, columns)
    for k, wants in enumerate(SUBSETS):
        check_pass(TEAMS[(k + turn) % len(TEAMS)], exact, tiles, band, wants, rows, columns)


def check_maxima(tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> None:
    exact = ORACLE.row_column_max(tiles, band, ("rows", "columns"), rows, columns)
    for norms, wants in product(TEAMS, ((), ("rows",), ("columns",), ("rows", "columns"))):
        found = norms.row_column_max(tiles, band, wants, rows, columns)
        for want, mine, right in zip(("rows", "columns"), found, exact):
            expected = right if want in wants else np.zeros(0)
            if tiles and tiles[0].A.dtype.kind == "c":
                agree(mine, expected, [], terms=1) if tiles[0].A.dtype != np.complex128 else agree(
                    mine, expected, tiles, terms=1
                )
            else:
                np.testing.assert_array_equal(mine, expected)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads work, on short pieces of lines, however small the matrix."""
    monkeypatch.setattr(norm_tiles, "ALONE", -1)
    monkeypatch.setattr(norm_tiles, "PIECE", 8)


# --- a pass over tiles ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TYPES)
def test_a_pass_gives_what_its_definition_gives(rng: Any, name: str, layout: str) -> None:
    shapes = [(1, 1), (1, 7), (7, 1), (13, 17), (61, 29), (0, 3), (3, 0)]
    for turn, ((m, n), band) in enumerate(product(shapes, BANDS.values())):
        tile = one_tile(random_values(rng, (m, n), TYPES[name]), band, layout)
        check_every_pass([tile], band, m, n, turn)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("layout", ["by rows", "by columns", "strided"])
@pytest.mark.parametrize("name", TYPES)
def test_a_pass_over_a_block_cyclic_part_tests_the_band_on_global_indices(rng: Any, name: str, layout: str) -> None:
    m, n, mb, nb, P, Q = 31, 43, 3, 5, 2, 3
    values = random_values(rng, (m, n), TYPES[name])
    for turn, (band, p, q) in enumerate(product(BANDS.values(), range(P), range(Q))):
        rows, cols = block_cyclic(BlockCyclic(m, mb, p, P)), block_cyclic(BlockCyclic(n, nb, q, Q))
        local = values[np.ix_(ORACLE.places(rows), ORACLE.places(cols))]
        tile = Tile(LAYOUTS[layout](poisoned(local, rows, cols, band)), rows, cols, 0, 0)
        check_every_pass([tile], band, rows.size, cols.size, turn)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_a_pass_over_tiles_adds_each_where_it_belongs(rng: Any, name: str) -> None:
    heights, widths = (3, 1, 0, 17, 2), (5, 19, 1, 4)
    values = random_values(rng, (sum(heights), sum(widths)), TYPES[name])
    for turn, band in enumerate(BANDS.values()):
        tiles = ragged_tiles(rng, values, band, heights, widths)
        check_every_pass(tiles, band, *values.shape, turn)
        some = tiles[:7]  # as a rank sees it that holds no more
        check_every_pass(some, band, *values.shape, turn)
        shifted = [Tile(t.A, t.rows, t.cols, t.row0 + 2, t.col0 + 3) for t in some]
        check_every_pass(shifted, band, values.shape[0] + 4, values.shape[1] + 5, turn)
    check_every_pass([], WHOLE, 3, 4)


@pytest.mark.parametrize(
    ("name", "m", "n"),
    [
        ("float64", 3, 11003), ("float64", 11003, 3), ("float64", 1, 40009), ("float64", 40009, 1),
        ("float32", 37, 2113), ("float32", 2113, 37), ("float32", 1, 70001),
        ("complex128", 7, 4201), ("complex128", 4201, 7), ("complex64", 13, 4099), ("complex64", 1, 40009),
        ("float16", 29, 4801), ("float16", 140009, 1), ("bfloat16", 4801, 29), ("bfloat16", 1, 140009),
    ],
)  # fmt: skip
def test_a_pass_over_long_lines_shared_out_among_threads(rng: Any, name: str, m: int, n: int) -> None:
    values = random_values(rng, (m, n), TYPES[name])
    assert values.nbytes > norm_tiles.ALONE, "several threads must have something to do"
    for band in (WHOLE, Band(1000, 1500)):
        layout = str(rng.choice(list(LAYOUTS)))
        tile = one_tile(values, band, layout)
        exact = ORACLE.norm_pass([tile], band, WANTS, m, n)
        for norms in TEAMS:
            for wants in (WANTS, {"max"}, {"squares"}, {"rows"}, {"columns"}, {"rows", "columns"}):
                check_pass(norms, exact, [tile], band, wants, m, n)


@pytest.mark.parametrize("name", TYPES)
def test_a_pass_over_many_lines_shared_out_among_threads(rng: Any, name: str) -> None:
    m, n = {"float16": (419, 337), "bfloat16": (337, 419)}.get(name, (401, 211))
    values = random_values(rng, (m, n), TYPES[name])
    assert values.nbytes > norm_tiles.ALONE
    for band, layout in product((WHOLE, Band(ENDLESS, -1)), ("by rows", "by padded columns")):
        check_every_pass([one_tile(values, band, layout)], band, m, n)


def test_an_entry_that_is_repeated_without_being_stored_again_counts_each_time() -> None:
    for value, shape in product((1.5, np.float32(0.25), 3 - 4j), ((1, 1), (5, 9), (3, 2500))):
        A = np.broadcast_to(np.array(value), shape)
        check_every_pass([Tile(A, consecutive(shape[0]), consecutive(shape[1]), 0, 0)], WHOLE, *shape)


# --- numbers at the ends of the range, and no numbers ------------------------------------------------------------


def magnitudes_of(dtype: Any) -> dict[str, Any]:
    """Scales of entries: near the largest number, near the smallest, and where squares leave the range of fp64."""
    info = ml_dtypes.finfo(dtype)
    largest, least = float(info.max), float(info.smallest_subnormal)
    found = {"large": largest / 64, "small": float(info.tiny) * 8, "denormal": least * 32}
    if dtype in (np.float64, np.complex128):
        found |= {"1e150": 1e150, "1e-140": 1e-140, "1e-155": 1e-155, "1e-200": 1e-200}
    return found


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_neither_large_nor_small_numbers_are_lost(rng: Any, name: str) -> None:
    dtype, (m, n) = TYPES[name], (17, 23)
    scales = magnitudes_of(dtype)
    for turn, (scale, band) in enumerate(product(scales.values(), (WHOLE, Band(ENDLESS, 0), DIAGONAL))):
        tile = one_tile(random_values(rng, (m, n), dtype, scale), band, list(LAYOUTS)[turn % len(LAYOUTS)])
        check_every_pass([tile], band, m, n, turn)
        check_maxima([tile], band, m, n)
    for turn in range(6):  # every entry at its own scale
        each = rng.choice([0.0, 1.0, *scales.values()], (m, n))
        values = random_values(rng, (m, n), dtype, 1.0).astype(np.complex128 if dtype.kind == "c" else np.float64)
        with np.errstate(over="ignore", under="ignore"):
            tile = one_tile((values * each).astype(dtype), WHOLE)
        check_every_pass([tile], WHOLE, m, n, turn)
        check_maxima([tile], WHOLE, m, n)


@pytest.mark.parametrize("name", ["float64", "complex128"])
@pytest.mark.parametrize("scale", [1e300, 1e-310])
def test_long_lines_at_the_ends_of_the_range(rng: Any, name: str, scale: float) -> None:
    for m, n in ((3, 6007), (6007, 3), (1, 4099)):
        values = random_values(rng, (m, n), TYPES[name], scale)
        values[0, n // 2] = 1.0
        check_every_pass([one_tile(values, WHOLE)], WHOLE, m, n)


@pytest.mark.parametrize("name", ["float64", "complex128"])
def test_sums_beyond_the_largest_number_are_infinite_but_the_sum_of_squares_keeps_its_root(name: str) -> None:
    A = np.full((5, 7), 1.7e308, TYPES[name])
    tile = one_tile(A, WHOLE)
    check_every_pass([tile], WHOLE, 5, 7)
    parts = TEAMS[0].norm_pass([tile], WHOLE, WANTS, 5, 7)
    assert parts.top == 1.7e308
    assert np.isinf(parts.by_row).all()
    assert np.isinf(parts.by_column).all()
    assert np.isfinite(parts.squares).all(), "in three parts they go on to be added over ranks"
    assert math.isinf(root(*TEAMS[0].floats(parts.squares)))


def strange(dtype: Any) -> list[Any]:
    """What is no number: NaN and Inf of both signs, and of a complex entry every mixture of them."""
    real = [np.nan, -np.nan, np.inf, -np.inf]
    if dtype.kind != "c":
        return real
    return real + [complex(re, im) for re, im in product((1.0, np.nan, np.inf, -np.inf), repeat=2) if re != im]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_nan_wins_over_inf_and_inf_over_numbers(rng: Any, name: str) -> None:
    dtype, (m, n) = TYPES[name], (11, 13)
    for turn, (first, second) in enumerate(product(strange(dtype), [None, *strange(dtype)])):
        values = random_values(rng, (m, n), dtype)
        for value in (first, second):
            if value is not None:
                values[rng.integers(m), rng.integers(n)] = value
        tile = one_tile(values, WHOLE, list(LAYOUTS)[turn % len(LAYOUTS)])
        check_every_pass([tile], WHOLE, m, n, turn)
        check_maxima([tile], WHOLE, m, n)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_nan_reaches_its_sums_from_every_place(rng: Any, name: str) -> None:
    m, n = 6, 9
    beside = [random_values(rng, (m, n), TYPES[name]), np.zeros((m, n), TYPES[name])]
    for (i, j), around in product(product(range(m), range(n)), beside):
        values = around.copy()
        values[(i + 1) % m, j] = np.inf
        values[i, j] = np.nan
        for norms in TEAMS:
            parts = norms.norm_pass([one_tile(values, WHOLE)], WHOLE, WANTS, m, n)
            assert math.isnan(parts.top)
            assert math.isnan(root(*norms.floats(parts.squares)))
            assert np.isnan(parts.by_row).tolist() == [k == i for k in range(m)]
            assert np.isnan(parts.by_column).tolist() == [k == j for k in range(n)]
            assert np.isinf(parts.by_row).tolist() == [k == (i + 1) % m for k in range(m)]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_one_entry_among_zeros_is_not_overlooked(name: str) -> None:
    dtype, (m, n) = TYPES[name], (5, 7)
    least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    for turn, ((i, j), value) in enumerate(product(product(range(m), range(n)), (np.nan, np.inf, least, 1.0))):
        values = np.zeros((m, n), dtype)
        values[i, j] = value
        tile = one_tile(values, WHOLE, list(LAYOUTS)[turn % len(LAYOUTS)])
        check_every_pass([tile], WHOLE, m, n, turn)


# --- maxima of rows and columns ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_the_maxima_of_rows_and_columns(rng: Any, name: str) -> None:
    for band, layout in product(BANDS.values(), LAYOUTS):
        for m, n in ((1, 9), (31, 23), (0, 4)):
            tile = one_tile(random_values(rng, (m, n), TYPES[name]), band, layout)
            check_maxima([tile], band, m, n)
    for band in BANDS.values():
        check_maxima(ragged_tiles(rng, random_values(rng, (20, 24), TYPES[name]), band, (3, 17), (5, 0, 19)), band,
                     20, 24)  # fmt: skip
        rows, cols = block_cyclic(BlockCyclic(31, 3, 1, 2)), block_cyclic(BlockCyclic(43, 5, 2, 3))
        A = poisoned(random_values(rng, (rows.size, cols.size), TYPES[name]), rows, cols, band)
        check_maxima([Tile(A, rows, cols, 0, 0)], band, rows.size, cols.size)


@pytest.mark.parametrize("name", TYPES)
def test_the_maxima_of_long_lines(rng: Any, name: str) -> None:
    for m, n in ((1, 40009), (2503, 31)):
        check_maxima([one_tile(random_values(rng, (m, n), TYPES[name]), WHOLE)], WHOLE, m, n)


# --- sums in folds ----------------------------------------------------------------------------------------------


def folds(norms: NormKernels, tiles: Sequence[Tile], band: Band, squared: bool, rows: int, columns: int) -> list[Any]:
    """The folds by row and by column, as the reproducible norms take them."""
    maxima = norms.row_column_max(tiles, band, ("rows", "columns"), rows, columns)
    factors = [norms.half_powers(top) for top in maxima]
    constants = sigmas(max(rows, columns))
    return list(norms.folded_sums(tiles, band, ("rows", "columns"), squared, constants, *factors))


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_folds_are_those_of_the_definition_to_the_last_bit(rng: Any, name: str, squared: bool) -> None:
    dtype = TYPES[name]
    for scale, band in product((1.0, *magnitudes_of(dtype).values()), (WHOLE, Band(ENDLESS, 0), Band(2, 3))):
        for m, n in ((23, 17), (1, 61)):
            tile = one_tile(random_values(rng, (m, n), dtype, scale), band, str(rng.choice(list(LAYOUTS))))
            maxima = ORACLE.row_column_max([tile], band, ("rows", "columns"), m, n)
            by_row, by_column = (ORACLE.half_powers(top) for top in maxima)
            for wants in (("rows",), ("columns",), ("rows", "columns"), ()):
                f_row, f_column = (f if want in wants else np.zeros(0)
                                   for want, f in (("rows", by_row), ("columns", by_column)))  # fmt: skip
                task = ([tile], band, wants, squared, sigmas(61), f_row, f_column)
                exact = ORACLE.folded_sums(*task)
                for norms in TEAMS:
                    for mine, right in zip(norms.folded_sums(*task), exact):
                        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_folds_have_the_same_bits_in_any_order_of_anything(rng: Any, name: str, squared: bool) -> None:
    m, n = {"float16": (431, 353), "bfloat16": (431, 353)}.get(name, (331, 239))
    values = random_values(rng, (m, n), TYPES[name]) * rng.choice([1, 0.5, 0.125], (m, n)).astype(TYPES[name])
    assert values.nbytes > norm_tiles.ALONE
    expected = folds(TEAMS[0], [one_tile(values, WHOLE)], WHOLE, squared, m, n)
    heights, widths = (100, 1, 40, m - 141), (7, 90, n - 97)
    down, right = rng.permutation(m), rng.permutation(n)
    for norms in TEAMS:
        for layout in LAYOUTS:
            found = folds(norms, [one_tile(values, WHOLE, layout)], WHOLE, squared, m, n)
            assert all(np.array_equal(mine, same) for mine, same in zip(found, expected)), layout
        found = folds(norms, ragged_tiles(rng, values, WHOLE, heights, widths), WHOLE, squared, m, n)
        assert all(np.array_equal(mine, same) for mine, same in zip(found, expected)), "cut into tiles"
        found = folds(norms, [one_tile(values[down][:, right], WHOLE)], WHOLE, squared, m, n)
        assert np.array_equal(found[0], expected[0][:, down]), "in another order"
        assert np.array_equal(found[1], expected[1][:, right]), "in another order"
        turned = folds(norms, [one_tile(values.T, WHOLE)], WHOLE, squared, n, m)
        assert all(np.array_equal(mine, same) for mine, same in zip(turned, reversed(expected))), "transposed"


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("terms", [1, 2, 3, 100, 4097])
def test_folds_add_up_to_the_sum(rng: Any, terms: int, squared: bool) -> None:
    for scale in (1.0, 1e300, 1e-300, 5e-322):
        x = rng.standard_normal((terms, 1)) * scale
        tile, top = one_tile(x, WHOLE), np.array([np.abs(x).max()])
        for norms in (*TEAMS, ORACLE):
            f = norms.half_powers(top)
            _, found = norms.folded_sums([tile], WHOLE, ("columns",), squared, sigmas(terms), np.zeros(0), f)
            value = norms.unfolded(found, f, top, squared)[0]
            exact = ORACLE.norm_pass([tile], WHOLE, WANTS, terms, 1)
            right = root(*ORACLE.floats(exact.squares)) if squared else exact.by_column[0]
            # Each of up to four folds is added with one rounding, entry and root cost three, and what is left out is
            # 2^-58 of the largest term; a denormal result is rounded to a multiple of the smallest number.
            assert abs(value - right) <= 8 * U * right + 2.0**-1074


# --- the small operations ---------------------------------------------------------------------------------------


def awkward(rng: Any) -> Any:
    """Zero, Inf, NaN, powers of two and their neighbours, all over the range."""
    powers = np.ldexp(1.0, np.array([-1074, -1073, -1022, -1021, -3, -2, -1, 0, 1, 2, 3, 1022, 1023]))
    random = np.ldexp(rng.random(50) + 0.5, rng.integers(-1073, 1023, 50))
    return np.concatenate([[0.0, np.inf, np.nan, np.finfo(np.float64).max], powers, np.nextafter(powers, 0.0), random])


@pytest.mark.parametrize("norms", TEAMS[:1])
def test_half_powers_are_the_least_even_ones(rng: Any, norms: NormKernels) -> None:
    maxima = awkward(rng)
    np.testing.assert_array_equal(norms.half_powers(maxima), ORACLE.half_powers(maxima))


@pytest.mark.parametrize("norms", [ORACLE, *TEAMS[:1]])
def test_half_powers_bring_every_maximum_to_1_at_most(rng: Any, norms: NormKernels) -> None:
    maxima = awkward(rng)
    usable = np.isfinite(maxima) & (maxima > 0)
    factors = norms.half_powers(maxima)
    assert (np.frexp(factors)[0] == 0.5).all(), "powers of two, so that scaling is exact"
    assert (factors[~usable] == 1.0).all()
    assert (maxima[usable] * factors[usable] * factors[usable] <= 1.0).all()
    assert (maxima[usable] * factors[usable] * factors[usable] > 0.125).all()


def test_unfolding_divides_by_the_factors_and_keeps_what_is_no_number(rng: Any) -> None:
    norms, maxima = TEAMS[0], awkward(rng)
    factors, sums = ORACLE.half_powers(maxima), rng.random((3, len(maxima))) * [[1.0], [2.0**-30], [2.0**-60]]
    for squared in (False, True):
        found, exact = (kernels.unfolded(sums, factors, maxima, squared) for kernels in (norms, ORACLE))
        np.testing.assert_allclose(found, exact, rtol=4 * U, atol=2.0**-1074)  # three roundings, or half a denormal
        for value in (0.0, np.inf, np.nan):
            np.testing.assert_equal(found[np.isnan(maxima) if value != value else maxima == value], value)


def test_vectors_are_taken_spread_and_met_at_their_places(rng: Any) -> None:
    norms = TEAMS[0]
    cases = [
        consecutive(0),
        consecutive(7, 3),
        block_cyclic(BlockCyclic(23, 3, 1, 2)),
        block_cyclic(BlockCyclic(23, 4, 0, 3)),
    ]
    for places in cases:
        at = norms.places(places)
        assert list(at) == list(ORACLE.places(places))
        values, full, matrix = rng.random(places.size), rng.random(29), rng.random((3, places.size))
        np.testing.assert_array_equal(norms.spread(values, at, 29), ORACLE.spread(values, at, 29))
        np.testing.assert_array_equal(norms.spread(matrix, at, 29), ORACLE.spread(matrix, at, 29))
        np.testing.assert_array_equal(norms.taken(full, at), ORACLE.taken(full, at))
        np.testing.assert_array_equal(norms.taken(norms.spread(values, at, 29), at), values)
        for end in (0, 5, 11, 40):
            np.testing.assert_array_equal(norms.below(at, end), ORACLE.below(at, end))
    for rows, cols in product(cases, cases):
        x, y = rng.random(rows.size), rng.random(cols.size)
        np.testing.assert_array_equal(
            norms.meeting(x, norms.places(rows), y, norms.places(cols)),
            ORACLE.meeting(x, ORACLE.places(rows), y, ORACLE.places(cols)),
        )


def test_larger_largest_and_hypot_let_nan_win(rng: Any) -> None:
    norms, numbers = TEAMS[0], awkward(rng)
    x, y = (part.ravel() for part in np.meshgrid(numbers, numbers))
    np.testing.assert_array_equal(norms.larger(x, y), ORACLE.larger(x, y))
    np.testing.assert_array_equal(norms.hypot(x, y), ORACLE.hypot(x, y))
    assert np.isnan(norms.hypot(np.array([np.inf, np.nan]), np.array([np.nan, np.inf]))).all()
    for values in ([], [0.0], [1.0, np.inf], [np.nan, np.inf], [np.inf, np.nan, 1.0], [3.0, 4.0]):
        vector = norms.vector_of(values)
        assert norms.floats(vector) == pytest.approx(values, nan_ok=True)
        np.testing.assert_equal(norms.largest(vector), ORACLE.largest(ORACLE.vector_of(values)))


@pytest.mark.parametrize("name", TYPES)
def test_the_real_part_is_a_view(rng: Any, name: str) -> None:
    tile = one_tile(random_values(rng, (5, 7), TYPES[name]), WHOLE, "strided")
    for norms in (TEAMS[0], ORACLE):
        part = norms.real_part(tile)
        assert np.shares_memory(part.A, tile.A)
        assert part.A.dtype.kind != "c"
        np.testing.assert_array_equal(part.A.astype(np.float64), tile.A.real.astype(np.float64))
        assert (part.rows, part.cols, part.row0, part.col0) == (tile.rows, tile.cols, tile.row0, tile.col0)
        check_every_pass([part], DIAGONAL, 5, 7)


@pytest.mark.parametrize("name", TYPES)
def test_reading_all_takes_every_tile_and_changes_none(rng: Any, name: str) -> None:
    tiles = [one_tile(random_values(rng, shape, TYPES[name]), WHOLE, layout)
             for shape, layout in product(((3, 5), (400, 503), (0, 2)), LAYOUTS)]  # fmt: skip
    before = [tile.A.tobytes() for tile in tiles]
    for norms in (*TEAMS, ORACLE):
        norms.read_all(tiles)
    assert [tile.A.tobytes() for tile in tiles] == before


# --- what norms are checked with --------------------------------------------------------------------------------


def exact_pair(pair: Any) -> list[Fraction]:
    """High and low together."""
    return [Fraction(float(high)) + Fraction(float(low)) for high, low in pair.T]


def agree_in_doubled_precision(found: Any, exact: Any, terms: int) -> None:
    """To (n·u)², and 2^-98 for the few operations on each entry; high is the whole rounded once."""
    assert found.shape == exact.shape
    for mine, right, high in zip(exact_pair(found), exact_pair(exact), found[0]):
        assert abs(mine - right) <= right * Fraction((terms * U) ** 2 + 2.0**-98)
        assert float(mine) == high


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("name", TYPES)
def test_extended_passes_are_right_to_twice_as_many_digits(rng: Any, name: str) -> None:
    bands = (WHOLE, Band(ENDLESS, 0), Band(2, 3), Band(0, -1))
    for (m, n), band in product(((31, 17), (2, 2203), (0, 3)), bands):
        for layout in ("by columns", "strided") if n < 100 else ("by rows",):
            tiles = [one_tile(random_values(rng, (m, n), TYPES[name]), band, layout)]
            exact = ORACLE.extended_pass(tiles, band, m, n)
            for norms in TEAMS if n < 100 else TEAMS[-1:]:
                found = norms.extended_pass(tiles, band, m, n)
                assert found.entries == exact.entries == band.entries(m, n)
                agree(found.top, exact.top, tiles, terms=1)
                agree_in_doubled_precision(found.squares, exact.squares, max(m * n, 1))
                agree_in_doubled_precision(found.by_row, exact.by_row, n)
                agree_in_doubled_precision(found.by_column, exact.by_column, m)


def test_paired_sums_keep_what_is_rounded_off(rng: Any) -> None:
    terms = [rng.standard_normal((3, 5)) ** 2, 2.0**-60 * rng.random((40, 5)), 2.0**40 * rng.random((1, 5))]
    exact = [sum(Fraction(float(x)) for term in terms for x in term[:, j]) for j in range(5)]
    for norms in (TEAMS[0], ORACLE):
        found = norms.paired_sum(terms)
        assert exact_pair(found) == pytest.approx(exact, rel=(44 * U) ** 2)
        assert [float(x) for x in exact] == found[0].tolist()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", TYPES)
def test_matrices_are_made_and_filled(rng: Any, name: str, order: str) -> None:
    for m, n in ((0, 4), (1, 1), (7, 13)):
        real, imaginary = rng.standard_normal((m, n)), rng.standard_normal((m, n))
        expected = (real + 1j * imaginary if TYPES[name].kind == "c" else real).astype(TYPES[name])
        for norms in (*TEAMS, ORACLE):
            A = norms.empty(m, n, name, order)
            assert (A.shape, A.dtype) == ((m, n), TYPES[name])
            assert A.flags[f"{order}_CONTIGUOUS"]
            norms.put(A, real, imaginary if TYPES[name].kind == "c" else None)
            assert A.tobytes() == expected.tobytes()


def test_the_oracle_reads_only_the_band_and_sums_exactly() -> None:
    A = np.array([[1.0, np.nan, np.nan], [2.0**53, 1.0, np.nan], [1.0, 2.0**-60, 3.0]])
    tile = Tile(A, consecutive(3), consecutive(3), 0, 0)
    assert not entries(tile, Band(ENDLESS, 0))[0, 1:].any()
    parts = ORACLE.norm_pass([tile], Band(ENDLESS, 0), WANTS, 3, 3)
    assert parts.top == 2.0**53
    assert parts.by_row.tolist() == [1.0, 2.0**53, 4.0]  # 2^53 + 1 lies half way, and goes to the even one
    assert parts.by_column.tolist() == [2.0**53 + 2.0, 1.0, 3.0]
    np.testing.assert_array_equal(magnitude(np.array([complex(np.inf, np.nan), -3 + 4j])), [np.nan, 5.0])
