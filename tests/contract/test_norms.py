"""Compare every kernel of norms with its definition, for all types, strides, bands, tiles, threads and devices.

Entries outside of the band, and memory between the entries of a strided tile, are NaN, so that reading them is
detected.  Blocks, strips and launches are so small that all threads work, and small matrices need several of each.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.norms import tile_table
from mxpeak.kernels.host.norms.norms import SMALL
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import block_cyclic
from mxpeak.layout.structure import DIAGONAL, WHOLE, Band
from mxpeak.solvers.norms import root
from tests.support.norm_backends import (
    HOST,
    SUBSETS,
    TORCH,
    WANTS,
    Case,
    Norms,
    agree,
    case_of,
    check,
    check_maxima,
    check_pass,
    norms_of,
    random_case,
)
from tests.support.norm_tiles import (
    BANDS,
    LAYOUTS,
    TYPES,
    magnitudes_of,
    not_numbers,
    one_tile,
    poisoned,
    ragged_tiles,
    random_values,
)
from tests.support.notes import note_case
from tests.support.torch_devices import tensor


@pytest.fixture(params=HOST)
def host_norms(request: pytest.FixtureRequest) -> Norms:
    """Provide the host kernels with different steps."""
    return norms_of(request.param)


# --- a pass over tiles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_a_pass_gives_what_its_definition_gives(norms: Norms, name: str) -> None:
    shapes = [(1, 1), (1, 131), (61, 1), (13, 17), (37, 23), (61, 5), (3, 67), (0, 3), (3, 0)]
    if norms.backend.on_torch:
        shapes = [(1, 1), (1, 67), (37, 1), (13, 17), (19, 11), (37, 5), (3, 41), (0, 3), (3, 0)]
    cases = list(product(norms.layouts, shapes, BANDS.values()))
    for turn, (layout, shape, band) in enumerate(
        norms.some(cases, 5 * list(TYPES).index(name), host=3, threads=11, triton=43)
    ):
        with note_case(layout=layout, shape=shape, band=band):
            check(norms, random_case(name, shape, band).laid(layout), turn)


@pytest.mark.parametrize("name", ["float32", "complex128"])
def test_only_what_is_wanted_is_given(norms: Norms, name: str) -> None:
    for layout, wants in norms.some(product(("by rows", "by columns"), SUBSETS), torch=1, triton=3):
        with note_case(layout=layout, wants=wants):
            check_pass(norms, random_case(name, (11, 13)).laid(layout), wants)


def test_only_blocks_that_meet_the_band_are_gone_through(norms: Norms) -> None:
    shapes = [(41, 29), (29, 41), (7, 90), (90, 7)] if not norms.backend.interpreted else [(23, 13), (5, 43), (43, 5)]
    for turn, (shape, band) in enumerate(norms.some(product(shapes, BANDS.values()), torch=1, triton=3)):
        name, layout = ("float64", "float16")[turn % 2], ("by rows", "by columns")[turn // 2 % 2]
        with note_case(name=name, layout=layout, shape=shape, band=band):
            check(norms, random_case(name, shape, band).laid(layout), turn)


@cache
def cyclic_case(name: str, band: Band, p: int, q: int) -> Case:
    """Return the part of process (p, q) of a matrix on a 2×3 grid in blocks of 3×5."""
    rows, cols = block_cyclic(BlockCyclic(43, 3, p, 2)), block_cyclic(BlockCyclic(61, 5, q, 3))
    rng = np.random.default_rng([p, q])
    local = poisoned(random_values(rng, (rows.size, cols.size), TYPES[name]), rows, cols, band)
    return Case([Tile(local, rows, cols, 0, 0)], band, rows.size, cols.size)


def test_a_pass_over_a_block_cyclic_part_tests_the_band_on_global_indices(norms: Norms) -> None:
    for turn, (name, band) in enumerate(norms.some(product(TYPES, BANDS.values()), torch=3, triton=11)):
        p, q, layout = turn % 2, turn % 3, ("by rows", "by columns", "strided")[turn // 2 % 3]
        with note_case(name=name, band=band, p=p, q=q, layout=layout):
            check(norms, cyclic_case(name, band, p, q).laid(layout), turn)


def test_a_pass_over_tiles_adds_each_where_it_belongs(rng: Any, norms: Norms) -> None:
    heights, widths = (3, 1, 0, 17), (5, 19, 1)
    m, n = sum(heights), sum(widths)
    for turn, (name, band) in enumerate(norms.some(product(TYPES, BANDS.values()))):
        values = random_values(rng, (m, n), TYPES[name])
        with note_case(name=name, band=band):
            tiles = ragged_tiles(rng, values, band, heights, widths, norms.layouts)
            check(norms, Case(tiles, band, m, n), turn)
            some = [replace(t, row0=t.row0 + 2, col0=t.col0 + 3) for t in tiles[:7]]  # all tiles of one rank
            check(norms, Case(some, band, m + 4, n + 5), turn)
    check(norms, Case([], WHOLE, 3, 4))


def test_tiles_whose_lines_overlap_in_part_are_all_added(rng: Any, norms: Norms) -> None:
    tiles = [
        replace(one_tile(random_values(rng, (size, 5), TYPES["float64"])), row0=first, col0=first)
        for first, size in ((0, 9), (4, 11), (4, 3), (13, 7))
    ]
    check(norms, Case(tiles, WHOLE, 20, 20))


def test_an_entry_that_is_repeated_without_being_stored_again_counts_each_time(norms: Norms) -> None:
    for value, shape in product((1.5, np.float32(0.25), 3 - 4j), ((1, 1), (5, 9), (3, 50))):
        full = case_of(np.full(shape, value))
        if norms.backend.on_torch:
            A = tensor(np.array([[value]])).expand(shape)
            parts = norms.kernels.norm_pass([replace(full.tiles[0], A=A)], WHOLE, WANTS, *shape)
            by_row, by_column = norms.here(parts.by_row, parts.by_column)
        else:
            A = np.broadcast_to(np.array(value), shape)
            parts = norms.kernels.norm_pass([replace(full.tiles[0], A=A)], WHOLE, WANTS, *shape)
            by_row, by_column = parts.by_row, parts.by_column
        assert parts.top == full.parts.top
        agree(by_row, full.parts.by_row, [], terms=shape[1])
        agree(by_column, full.parts.by_column, [], terms=shape[0])


#: Matrices for several threads: a few long lines, which are cut into pieces, and many lines.
LARGE = {
    "float64": [(3, 3301), (3301, 3), (1, 9001), (9001, 1), (101, 61)],
    "float32": [(11, 1103), (1103, 11), (1, 9001), (101, 61)],
    "complex128": [(7, 1201), (1201, 7), (101, 61)],
    "complex64": [(5, 1301), (1, 9001), (101, 61)],
    "float16": [(7, 1301), (9001, 1), (131, 67)],
    "bfloat16": [(1301, 7), (1, 9001), (67, 131)],
}


@pytest.mark.parametrize("name", TYPES)
def test_a_pass_over_lines_shared_out_among_threads(
    host_norms: Norms, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, value in {"SERIAL_BELOW": 2**13, "PIECE": 2**12, "MIN_PIECE": 2**9}.items():
        monkeypatch.setattr(tile_table, step, value)
    bands = (WHOLE, Band(1000, 1500), BANDS["strict lower"])
    subsets = [WANTS, {"max"}, {"squares"}, {"rows"}, {"columns"}, {"rows", "columns"}]
    for turn, (shape, band) in enumerate(product(LARGE[name], bands)):
        if turn % 2:  # each shape has one or two of the bands
            continue
        case = random_case(name, shape, band).laid(list(LAYOUTS)[turn % len(LAYOUTS)])
        assert case.tiles[0].A.nbytes > tile_table.SERIAL_BELOW, "several threads must have something to do"
        for wants in subsets:
            with note_case(shape=shape, band=band, wants=wants):
                check_pass(host_norms, case, wants)
        check_maxima(host_norms, case)


def test_a_line_of_more_than_a_piece_is_shared_out_in_the_usual_steps(host_norms: Norms) -> None:
    case = random_case("float32", (1, tile_table.PIECE + 4465))
    assert case.tiles[0].A.nbytes > tile_table.SERIAL_BELOW, "several threads must have something to do"
    for wants in (WANTS, {"squares"}, {"rows"}):
        check_pass(host_norms, case, wants)
    check_maxima(host_norms, case)


def test_small_general_matrices_have_the_norms_of_a_pass(rng: Any) -> None:
    kernels = norms_of("host").kernels
    for dtype, shape in product(TYPES.values(), ((1, 1), (5, 3), (3, 40), (40, 3), (0, 3), (70, 70))):
        for layout in LAYOUTS:
            A = LAYOUTS[layout](random_values(rng, shape, dtype))
            exact = case_of(A).parts
            expected = {"max": exact.top, "squares": root(*exact.squares.tolist())}
            expected |= {"rows": exact.by_row.max(initial=0.0), "columns": exact.by_column.max(initial=0.0)}
            for want, value in expected.items():
                actual = kernels.small_norm(A, want)
                if layout in ("by rows", "by columns"):
                    assert actual is not None
                if actual is not None:
                    agree(np.float64(actual), np.float64(value), [one_tile(A)], terms=max(A.size, 1))
    line = np.ones(7)
    assert kernels.small_norm(line, "columns") == 7.0, "a vector is a column"
    for unfit in (np.ones(SMALL // 8 + 1), np.ones((2, 2, 2)), np.ones((2, 2), int), np.full((2, 2), 1e200)):
        assert kernels.small_norm(unfit, "squares") is None
    for name in ("reference", *TORCH):
        assert norms_of(name).apply("small_norm", line, "max") is None


# --- limits of the range, NaN and infinity ---------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_neither_large_nor_small_numbers_are_lost(rng: Any, norms: Norms, name: str) -> None:
    dtype, shape = TYPES[name], (5, 11) if norms.backend.on_torch else (9, 17)
    scales = magnitudes_of(dtype)
    for turn, (band, scale) in enumerate(product((WHOLE, DIAGONAL, BANDS["lower"]), scales.values())):
        if not norms.backend.on_torch or turn % 3 == turn // len(scales):
            with note_case(band=band, scale=scale):
                check(norms, random_case(name, shape, band, scale).laid(norms.layouts[turn % len(norms.layouts)]), turn)
    for turn in range(2 if norms.backend.on_torch else 6):  # every entry has its own scale
        each = rng.choice([0.0, 1.0, *scales.values()], shape)
        values = random_values(rng, shape, np.dtype(np.complex128 if dtype.kind == "c" else np.float64))
        with np.errstate(over="ignore", under="ignore"):
            case = case_of((values * each).astype(dtype))
        check(norms, case, turn)


@pytest.mark.parametrize("name", ["float64", "complex128"])
def test_long_lines_at_the_ends_of_the_range(rng: Any, host_norms: Norms, name: str) -> None:
    for scale, (m, n) in ((1e300, (3, 6007)), (1e-310, (6007, 3)), (1e300, (1, 4099)), (1e-310, (1, 4099))):
        values = random_values(rng, (m, n), TYPES[name], scale)
        values[0, n // 2] = 1.0
        case = case_of(values)
        for wants in SUBSETS:
            with note_case(shape=(m, n), scale=scale, wants=wants):
                check_pass(host_norms, case, wants)


def test_sums_beyond_the_largest_number_are_infinite_but_the_sum_of_squares_keeps_its_root(norms: Norms) -> None:
    for name in ("float64", "complex128"):
        case = case_of(np.full((5, 7), 1.7e308, TYPES[name]))
        for wants in norms.some(SUBSETS, torch=1, triton=3):
            check_pass(norms, case, wants)
        parts = norms.norm_pass(case.tiles, WHOLE, WANTS, 5, 7)
        assert parts.top == 1.7e308
        assert np.isinf(parts.by_row).all()
        assert np.isinf(parts.by_column).all()
        assert np.isfinite(parts.squares).all(), "in three parts they go on to be added over ranks"
        assert math.isinf(root(*parts.squares.tolist()))


def test_nan_wins_over_inf_and_inf_over_numbers(norms: Norms) -> None:
    cases = [(name, number) for name, dtype in TYPES.items() for number in range(len(pairs_of_no_numbers(dtype)))]
    for turn, (name, number) in enumerate(norms.some(cases, host=3, threads=7)):
        with note_case(name=name, pair=pairs_of_no_numbers(TYPES[name])[number]):
            check(norms, no_number_case(name, number).laid(norms.layouts[turn % len(norms.layouts)]), turn)


def pairs_of_no_numbers(dtype: Any) -> list[Any]:
    """Return all pairs of NaN and infinities, and each of them alone."""
    return list(product(not_numbers(dtype), [None, *not_numbers(dtype)]))


@cache
def no_number_case(name: str, number: int) -> Case:
    """Return a random matrix that contains one of these pairs."""
    rng, dtype = np.random.default_rng(number), TYPES[name]
    A = random_values(rng, (7, 9), dtype)
    for value in pairs_of_no_numbers(dtype)[number]:
        if value is not None:
            A[rng.integers(7), rng.integers(9)] = value
    return case_of(A)


def test_nan_reaches_its_sums_from_every_position(rng: Any, norms: Norms) -> None:
    m, n = 6, 9
    for name, dtype in TYPES.items():
        others = [random_values(rng, (m, n), dtype), np.zeros((m, n), dtype)]
        for (i, j), around in norms.some(product(np.ndindex(m, n), others), len(name), threads=7):
            values = around.copy()
            values[(i + 1) % m, j], values[i, j] = np.inf, np.nan
            parts = norms.norm_pass([one_tile(values)], WHOLE, WANTS, m, n)
            with note_case(name=name, i=i, j=j):
                assert math.isnan(parts.top)
                assert math.isnan(root(*parts.squares.tolist()))
                assert np.isnan(parts.by_row).tolist() == [k == i for k in range(m)]
                assert np.isnan(parts.by_column).tolist() == [k == j for k in range(n)]
                assert np.isinf(parts.by_row).tolist() == [k == (i + 1) % m for k in range(m)]


def test_one_entry_among_zeros_is_not_overlooked(norms: Norms) -> None:
    m, n = 5, 7
    for name, dtype in TYPES.items():
        least = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        cases = norms.some(product(np.ndindex(m, n), (np.nan, np.inf, least, 1.0)), len(name), host=3, threads=7)
        for turn, ((i, j), value) in enumerate(cases):
            values = np.zeros((m, n), dtype)
            values[i, j] = value
            with note_case(name=name, i=i, j=j, value=value):
                check(norms, case_of(values, WHOLE, norms.layouts[turn % len(norms.layouts)]), turn)
