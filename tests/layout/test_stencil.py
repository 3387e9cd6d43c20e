"""Compare the boxes of the 27-point problem with its definition, on every grid of up to 12 ranks."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from math import prod

import pytest

from mxpeak.errors import UsageError
from mxpeak.layout.stencil import (
    MIN_ASPECT,
    Box,
    Triple,
    aspect,
    check_box,
    device_grid,
    good_ranks,
    good_sizes,
    largest_cube,
    process_grid,
)

GRIDS = [grid for grid in product(range(1, 13), repeat=3) if prod(grid) <= 12]
SHAPES = [(1, 1, 1), (2, 2, 2), (3, 1, 2), (2, 3, 4)]
STEPS = list(product((-1, 0, 1), repeat=3))


def points(first: Triple, shape: Triple) -> list[Triple]:
    """Return the points of a box, x fastest."""
    x0, y0, z0 = first
    nx, ny, nz = shape
    return [(x0 + x, y0 + y, z0 + z) for z in range(nz) for y in range(ny) for x in range(nx)]


def globally(box: Box, local: list[Triple]) -> list[Triple]:
    x0, y0, z0 = box.origin
    return [(x0 + x, y0 + y, z0 + z) for x, y, z in local]


@lru_cache(maxsize=512)
def coupled(point: Triple, domain: Triple) -> set[Triple]:
    """Return a point and its neighbors inside the domain."""
    (x, y, z), (gnx, gny, gnz) = point, domain
    around = {(x + dx, y + dy, z + dz) for dx, dy, dz in STEPS}
    return {(x, y, z) for x, y, z in around if 0 <= x < gnx and 0 <= y < gny and 0 <= z < gnz}


def needed(box: Box) -> set[Triple]:
    """Return the points of other ranks with which a rank's rows are coupled."""
    own = set(globally(box, points((0, 0, 0), box.shape)))
    return {other for point in own for other in coupled(point, box.global_shape)} - own


def ranks_of(shape: Triple, grid: Triple) -> list[Box]:
    return [Box.of(rank, shape, grid) for rank in range(prod(grid))]


# --- boxes ------------------------------------------------------------------------------------------------------


def test_a_rank_and_its_box_name_each_other() -> None:
    for grid in GRIDS:
        boxes = ranks_of((2, 1, 3), grid)
        assert [box.rank for box in boxes] == list(range(prod(grid))), grid
        assert all(box.ranks == prod(grid) for box in boxes), grid
        owned = [point for box in boxes for point in globally(box, points((0, 0, 0), box.shape))]
        domain = boxes[0].global_shape
        assert sorted(owned) == sorted(points((0, 0, 0), domain)), "every point of the domain has one owner"
        assert boxes[0].global_rows == prod(domain) == sum(box.rows for box in boxes), grid


def test_the_entries_of_the_ranks_are_those_of_the_domain() -> None:
    for grid in GRIDS:
        for shape in SHAPES:
            boxes = ranks_of(shape, grid)
            domain = boxes[0].global_shape
            own = (point for box in boxes for point in globally(box, points((0, 0, 0), shape)))
            assert sum(len(coupled(point, domain)) for point in own) == boxes[0].global_nnz, (grid, shape)


def test_the_entries_of_coarse_points_are_those_of_every_second_point() -> None:
    for grid in GRIDS:
        box = Box.of(0, (2, 4, 2), grid)
        even = (point for point in points((0, 0, 0), box.global_shape) if all(p % 2 == 0 for p in point))
        assert box.global_coarse_nnz == sum(len(coupled(point, box.global_shape)) for point in even), grid


def test_a_rank_outside_the_grid_is_refused():
    with pytest.raises(IndexError, match="rank 8 is outside the process grid 2x2x2 of 8 ranks"):
        Box.of(8, (2, 2, 2), (2, 2, 2))
    with pytest.raises(IndexError, match="outside the process grid 2x1x1"):
        Box(2, 2, 2, 2, px=2)
    with pytest.raises(UsageError, match="a box of 0x2x2 points on 1x1x1 ranks is not valid"):
        Box(0, 2, 2)


# --- neighbors --------------------------------------------------------------------------------------------------


def test_what_a_rank_sends_is_what_its_neighbour_receives_in_the_same_order() -> None:
    for grid in GRIDS:
        for shape in SHAPES:
            boxes = ranks_of(shape, grid)
            sent = {
                (box.rank, to.rank): globally(box, points(to.first, to.shape))
                for box in boxes
                for to in box.neighbors()
            }
            received = {
                (of.rank, box.rank): globally(box, points(of.first_received, of.shape))
                for box in boxes
                for of in box.neighbors()
            }
            assert sent == received, (grid, shape)


def test_the_halo_is_every_point_needed_once() -> None:
    for grid in GRIDS:
        for shape in SHAPES:
            for box in ranks_of(shape, grid):
                halo = [point for of in box.neighbors() for point in globally(box, points(of.first_received, of.shape))]
                assert len(halo) == len(set(halo)) == box.halo, (grid, shape)
                assert set(halo) == needed(box), (grid, shape)


def test_neighbours_stand_by_rank_and_fill_the_halo_one_after_the_other() -> None:
    for grid in GRIDS:
        for box in ranks_of((2, 3, 4), grid):
            neighbours = box.neighbors()
            ranks = [neighbour.rank for neighbour in neighbours]
            assert ranks == sorted(set(ranks)), grid
            assert box.rank not in ranks, grid
            assert [neighbour.recv_offset for neighbour in neighbours] == [
                sum(before.count for before in neighbours[:i]) for i in range(len(neighbours))
            ], grid
            for neighbour in neighbours:
                there = Box.of(neighbour.rank, box.shape, box.grid)
                assert neighbour.direction == tuple(q - p for p, q in zip(box.coords, there.coords)), grid


def test_a_box_in_the_middle_has_26_neighbours_and_a_whole_layer_around_it():
    box = Box(4, 6, 8, 3, 3, 3, 1, 1, 1)
    assert len(box.neighbors()) == 26
    assert box.halo == 6 * 8 * 10 - 4 * 6 * 8
    assert Box(4, 6, 8).neighbors() == ()
    assert Box(4, 6, 8).halo == 0


# --- levels -----------------------------------------------------------------------------------------------------

#: Entries of the levels of cubic problems of one process: sizes and numbers of entries as HPCG reports them.
KNOWN = {
    104: (29_791_000, 3_652_264, 438_976, 50_653),
    128: (55_742_968, 6_859_000, 830_584, 97_336),
    256: (449_455_096, 55_742_968, 6_859_000, 830_584),
    320: (879_217_912, 109_215_352, 13_481_272, 1_643_032),
    384: (1_520_875_000, 189_119_224, 23_393_656, 2_863_288),
}


def test_the_entries_of_every_level_are_the_known_ones() -> None:
    for n in KNOWN:
        levels = Box(n, n, n).levels()
        assert tuple(box.global_nnz for box in levels) == KNOWN[n], n
        assert [box.rows for box in levels] == [(n >> level) ** 3 for level in range(4)], n


def test_levels_keep_the_coordinates_of_the_rank():
    for box in Box(16, 8, 24, 2, 3, 1, 1, 2, 0).levels():
        assert (box.grid, box.coords) == ((2, 3, 1), (1, 2, 0))
    assert [box.shape for box in Box(16, 8, 24).levels(3)] == [(16, 8, 24), (8, 4, 12), (4, 2, 6)]


def test_an_odd_side_has_no_coarser_one():
    with pytest.raises(UsageError, match="cannot coarsen the box 2x6x5, because nz = 5 is odd"):
        Box(2, 6, 5).coarser()
    with pytest.raises(UsageError, match="cannot coarsen the box 1x2x1"):
        Box(4, 8, 4).levels(4)


# --- process grids ----------------------------------------------------------------------------------------------


def test_the_process_grid_has_the_least_surface_and_ascending_sides():
    for ranks in range(1, 130):
        grid = process_grid(ranks)
        divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
        grids = [(x, y, ranks // (x * y)) for x in divisors for y in divisors if ranks % (x * y) == 0]
        assert prod(grid) == ranks
        assert list(grid) == sorted(grid)
        assert _surface(grid) == min(map(_surface, grids))


@pytest.mark.parametrize(
    ("ranks", "grid"), [(1, (1, 1, 1)), (8, (2, 2, 2)), (12, (2, 2, 3)), (7, (1, 1, 7)), (9408, (16, 21, 28))]
)
def test_the_process_grid_of_known_counts(ranks: int, grid: Triple) -> None:
    assert process_grid(ranks) == grid


def test_a_process_grid_needs_a_rank() -> None:
    with pytest.raises(UsageError, match="a process grid of 0 ranks"):
        process_grid(0)


def test_the_device_grid_has_the_fewest_faces_and_few_in_x() -> None:
    """Of the grids that satisfy the aspect rule; the faces are those of a rank in the middle."""

    def cost(grid: Triple) -> tuple[int, int]:
        x, y, z = (sum(0 <= side // 2 + step < side for step in (-1, 1)) for side in grid)
        return 2 * x + y + z, _surface(grid)

    for ranks in range(1, 300):
        grid = device_grid(ranks)
        assert prod(grid) == ranks
        assert list(grid) == sorted(grid)
        divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
        grids = [(x, y, ranks // (x * y)) for x in divisors for y in divisors if ranks % (x * y) == 0 and x <= y]
        good = [g for g in grids if g[1] <= g[2] and aspect(g) >= MIN_ASPECT]
        if good:
            assert aspect(grid) >= MIN_ASPECT
            assert cost(grid) == min(map(cost, good))
        else:
            assert grid == process_grid(ranks)


def _surface(grid: Triple) -> int:
    x, y, z = grid
    return x * y + x * z + y * z


@pytest.mark.parametrize(
    ("ranks", "good"), [(1, (1,)), (7, (7,)), (8, (8,)), (11, (10, 12)), (13, (12, 14)), (22, (21, 24))]
)
def test_counts_without_a_good_grid_have_neighbours_that_do(ranks: int, good: tuple[int, ...]):
    assert good_ranks(ranks) == good


def test_the_nearest_good_counts_are_the_nearest():
    for ranks in range(1, 150):
        good = [count for count in range(1, 2 * ranks + 2) if aspect(process_grid(count)) >= MIN_ASPECT]
        below, above = max(c for c in good if c <= ranks), min(c for c in good if c >= ranks)
        assert good_ranks(ranks) == ((ranks,) if below == above else (below, above))


# --- good sizes -------------------------------------------------------------------------------------------------


def test_good_sizes_are_the_nearest_that_can_be_halved():
    assert good_sizes(104) == (104,)
    assert good_sizes(100) == (96, 104)
    assert good_sizes(5) == (8,)
    assert good_sizes(100, levels=1) == (100,)
    assert good_sizes(99, levels=2) == (98, 100)


def test_the_largest_cube_is_the_last_whose_entries_32_bits_count():
    n = largest_cube()
    assert n == 424
    assert 27 * n**3 <= 2**31 - 1 < 27 * (n + 8) ** 3


@pytest.mark.parametrize("box", [Box(16, 16, 16), Box(104, 104, 104, 2, 2, 4), Box(16, 16, 128), Box(424, 424, 424)])
def test_good_boxes_pass(box: Box):
    check_box(box)


@pytest.mark.parametrize(
    ("box", "says"),
    [
        (
            Box(100, 104, 104),
            (
                "--nx 100 is not a multiple of 8, as 4 levels of multigrid need (100 / 8 leaves a remainder of "
                "4); use --nx 96 or --nx 104"
            ),
        ),
        (
            Box(104, 104, 20),
            (
                "--nz 20 is not a multiple of 8, as 4 levels of multigrid need (20 / 8 leaves a remainder of "
                "4); use --nz 16 or --nz 24"
            ),
        ),
        (
            Box(16, 9, 16),
            "--ny 9 is not a multiple of 8, as 4 levels of multigrid need (9 / 8 leaves a remainder of 1); use --ny 16",
        ),
        (
            Box(16, 8, 16),
            "--ny 8 is less than 16, the smallest value that the rules allow; use --ny 16, or --mode explore",
        ),
        (
            Box(16, 16, 136),
            "the local box 16x16x136 is too far from a cube: its shortest side divided by its longest is "
            "16/136 = 0.118, but the rules need at least 0.125; use sides of at least 24, sides of at most 128, or "
            "--mode explore",
        ),
        (
            Box(16, 16, 16, 1, 1, 11),
            "the process grid 1x1x11 is too far from a cube: its shortest side divided by its longest is "
            "1/11 = 0.0909, but the rules need at least 0.125; 1x1x11 is the best grid for 11 ranks, so "
            "start 10 (1x2x5) or 12 (2x2x3) ranks, or use --mode explore",
        ),
        (
            Box(16, 16, 16, 12),
            "the process grid 12x1x1 is too far from a cube: its shortest side divided by its longest is "
            "1/12 = 0.0833, but the rules need at least 0.125; use --npx 2 --npy 2 --npz 3, "
            "or use --mode explore",
        ),
        (
            Box(432, 432, 432),
            "a local box of 432x432x432 has 27*432*432*432 = 2176782336 entries, but 32-bit indices support "
            "at most 2^31-1 = 2147483647; use --nx 424, the largest cube, on more ranks",
        ),
        (
            Box(33, 32, 20),
            "--box 33x32x20: 33 is not a multiple of 8, as 4 levels of multigrid need (33 / 8 leaves a remainder of "
            "1); use --box 32x32x16 or --box 40x32x16",
        ),
        (
            Box(64, 8, 8),
            "--box 64x8x8: 8 is less than 16, the smallest value that the rules allow; use --box 64x16x16, or "
            "--mode explore",
        ),
        (
            Box(432, 432, 432),
            "a local box of 432x432x432 has 27*432*432*432 = 2176782336 entries, but 32-bit indices support "
            "at most 2^31-1 = 2147483647; use --box 424x424x424, the largest cube, on more ranks",
        ),
    ],
)
def test_a_bad_box_is_refused_with_the_arithmetic_and_what_to_type(box: Box, says: str):
    """The message names --box and a valid box if the user has set the box by this flag, otherwise --nx."""
    with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
        check_box(box, by_box="--box" in says)


@pytest.mark.parametrize("box", [Box(8, 8, 8), Box(16, 16, 136), Box(16, 16, 16, 1, 1, 11)])
def test_beyond_the_rules_only_what_cannot_be_is_refused(box: Box):
    check_box(box, rules=False)
    with pytest.raises(UsageError):
        check_box(box)


def test_what_cannot_be_is_refused_beyond_the_rules_too():
    with pytest.raises(UsageError, match=r"--nx 12 is not a multiple of 8, as 4 levels .* use --nx 8 or --nx 16"):
        check_box(Box(12, 8, 8), rules=False)
    with pytest.raises(UsageError, match="2176782336"):
        check_box(Box(432, 432, 432), rules=False)
