"""The points of the 27-point problem: the points of each rank, its halo, and valid box sizes.

The ranks form an npx×npy×npz grid, with rank = (pz·npy + py)·npx + px. Each rank owns an nx×ny×nz box of the global
gnx×gny×gnz points, numbered with x fastest: (z·ny + y)·nx + x. A point is coupled with all points of the domain at
most one step away in every direction. Therefore, the number of couplings is a product of three sums, one per
dimension:

    nnz = (3·gnx - 2)·(3·gny - 2)·(3·gnz - 2)

In each dimension, the first and the last point have one neighbor fewer. A rank receives the layer of points around its
box from its neighbors. Each neighbor sends a face, an edge or a corner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from mxpeak.errors import UsageError
from mxpeak.layout.grid import divisors

Triple = tuple[int, int, int]

#: Number of entries in a row inside the domain, and multigrid levels of HPCG and HPG-MxP.
STENCIL, LEVELS = 27, 4
#: Rules of both benchmarks: minimum points per local dimension, and minimum ratio of shortest to longest side.
MIN_SIDE, MIN_ASPECT = 16, 0.125
#: Largest index of an entry that a 32-bit integer represents.
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Neighbor:
    """An adjacent rank, and the points that both ranks exchange: a face, edge or corner of either box.

    direction     position of the neighbor: -1, 0 or 1 in x, y, z
    shape         numbers of points in x, y, z that are sent; the same numbers are received
    first         first point that is sent, in this box's coordinates; x is fastest
    recv_offset   position of the received points in the halo, in the same order
    """

    rank: int
    direction: Triple
    shape: Triple
    first: Triple
    recv_offset: int

    @property
    def count(self) -> int:
        """Return the number of points that this rank sends to the neighbor, and also receives from the neighbor."""
        return prod(self.shape)

    @property
    def first_received(self) -> Triple:
        """Return the coordinates, relative to this box, of the first received point, which is just outside the box."""
        return _triple(at + d for at, d in zip(self.first, self.direction))


@dataclass(frozen=True, slots=True)
class Box:
    """The box of nx×ny×nz points of one rank, and its position (px, py, pz) in the process grid."""

    nx: int
    ny: int
    nz: int
    npx: int = 1
    npy: int = 1
    npz: int = 1
    px: int = 0
    py: int = 0
    pz: int = 0

    def __post_init__(self) -> None:
        if min(self.shape) < 1 or min(self.grid) < 1:
            raise UsageError(
                f"a box of {times(self.shape)} points on {times(self.grid)} ranks is not valid; use at "
                "least one point and one rank in every dimension"
            )
        if not all(0 <= p < n for p, n in zip(self.coords, self.grid)):
            raise IndexError(
                f"process {self.coords} is outside the process grid {times(self.grid)}; use coordinates inside the grid"
            )

    @classmethod
    def of(cls, rank: int, shape: Triple, grid: Triple) -> Box:
        """Return the box of `rank`, with nx×ny×nz = `shape` points, in the process grid `grid`."""
        npx, npy, npz = grid
        if not 0 <= rank < prod(grid):
            raise IndexError(
                f"rank {rank} is outside the process grid {times(grid)} of {prod(grid)} ranks; use a rank from "
                f"0 to {prod(grid) - 1}"
            )
        return cls(*shape, npx, npy, npz, rank % npx, rank // npx % npy, rank // (npx * npy))

    @property
    def shape(self) -> Triple:
        """Return (nx, ny, nz), the numbers of local points in x, y and z."""
        return self.nx, self.ny, self.nz

    @property
    def grid(self) -> Triple:
        """Return (npx, npy, npz), the numbers of ranks in x, y and z."""
        return self.npx, self.npy, self.npz

    @property
    def coords(self) -> Triple:
        """Return this rank's coordinates (px, py, pz) in the process grid."""
        return self.px, self.py, self.pz

    @property
    def rank(self) -> int:
        """Return the rank that owns this box, (pz·npy + py)·npx + px."""
        return (self.pz * self.npy + self.py) * self.npx + self.px

    @property
    def ranks(self) -> int:
        """Return the number of ranks in the process grid."""
        return prod(self.grid)

    @property
    def rows(self) -> int:
        """Return the number of local points, which are this rank's rows."""
        return prod(self.shape)

    @property
    def gnx(self) -> int:
        """Return the global number of points in x."""
        return self.nx * self.npx

    @property
    def gny(self) -> int:
        """Return the global number of points in y."""
        return self.ny * self.npy

    @property
    def gnz(self) -> int:
        """Return the global number of points in z."""
        return self.nz * self.npz

    @property
    def global_shape(self) -> Triple:
        """Return the global numbers of points in x, y and z."""
        return self.gnx, self.gny, self.gnz

    @property
    def global_rows(self) -> int:
        """Return the number of points of the global domain, which is the order of the matrix."""
        return prod(self.global_shape)

    @property
    def global_nnz(self) -> int:
        """Return the number of entries of the global matrix, (3·gnx - 2)·(3·gny - 2)·(3·gnz - 2)."""
        return prod(3 * n - 2 for n in self.global_shape)

    @property
    def global_coarse_nnz(self) -> int:
        """Return the number of entries of the global matrix on the next coarser level, Π (3·gn/2 - 1) for even sides.

        The coarser level has every second point in each dimension.
        """
        self.coarser()
        return prod(3 * n // 2 - 1 for n in self.global_shape)

    @property
    def origin(self) -> Triple:
        """Return the global coordinates (x, y, z) of the box's first point."""
        return self.px * self.nx, self.py * self.ny, self.pz * self.nz

    @property
    def halo(self) -> int:
        """Return the number of points that this rank receives from all neighbors."""
        return sum(neighbor.count for neighbor in self.neighbors())

    def neighbors(self) -> tuple[Neighbor, ...]:
        """Return the up to 26 adjacent ranks, in rank order; the halo contains their points in this order."""
        neighbors: list[Neighbor] = []
        offset = 0
        for dz, dy, dx in product((-1, 0, 1), repeat=3):
            direction = dx, dy, dz
            there = [p + d for p, d in zip(self.coords, direction)]
            if direction == (0, 0, 0) or not all(0 <= p < n for p, n in zip(there, self.grid)):
                continue
            rank = (there[2] * self.npy + there[1]) * self.npx + there[0]
            shape = _triple(1 if d else n for d, n in zip(direction, self.shape))
            first = _triple(n - 1 if d > 0 else 0 for d, n in zip(direction, self.shape))
            neighbors.append(Neighbor(rank, direction, shape, first, offset))
            offset += neighbors[-1].count
        return tuple(neighbors)

    def coarser(self) -> Box:
        """Return the box of the next coarser level, which contains every second point in each dimension.

        Raises UsageError if a side is odd.
        """
        for name, n in zip("xyz", self.shape):
            if n % 2:
                raise UsageError(
                    f"multigrid cannot coarsen the box {times(self.shape)}, because n{name} = {n} is odd; use "
                    "even sides"
                )
        return replace(self, nx=self.nx // 2, ny=self.ny // 2, nz=self.nz // 2)

    def levels(self, count: int = LEVELS) -> list[Box]:
        """Return this box and the successively coarser boxes, `count` boxes in total."""
        boxes = [self]
        while len(boxes) < count:
            boxes.append(boxes[-1].coarser())
        return boxes


def process_grid(ranks: int) -> Triple:
    """Return the grid npx <= npy <= npz with the least surface between boxes, as in the reference code.

    The grid is the one nearest to a cube, on hosts and on devices, so that the same number of ranks solves the same
    problem. The longest side of the grid is z, so that a face in z is one contiguous piece of the vector.
    """
    if ranks < 1:
        raise UsageError(f"a process grid of {ranks} ranks is not valid; use at least one rank")
    return min(_grids(ranks), key=_surface)


def device_grid(ranks: int) -> Triple:
    """Return the grid npx <= npy <= npz that hides most of the halo exchange on devices.

    Of the grids that satisfy the aspect rule, it has the fewest faces that an inner rank sends, with faces in x counted
    twice. A face in x has a point of every line, so nearly every chunk of rows waits for the face; a face in y or z
    affects few chunks. Of equal grids, it is the one nearest to a cube.
    """
    process_grid(ranks)  # check the number of ranks

    def cost(grid: Triple) -> tuple[bool, int, int]:
        x, y, z = (min(side - 1, 2) for side in grid)
        breaks = aspect(grid) < MIN_ASPECT
        return breaks, 0 if breaks else 2 * x + y + z, _surface(grid)

    return min(_grids(ranks), key=cost)


def _grids(ranks: int) -> Iterator[Triple]:
    """Yield every grid npx <= npy <= npz with npx·npy·npz = ranks."""
    for npx in divisors(ranks):
        yield from (
            (npx, npy, ranks // (npx * npy)) for npy in divisors(ranks // npx) if npx <= npy and npx * npy**2 <= ranks
        )


def _surface(grid: Triple) -> int:
    """Return half the surface area of a box with these side lengths."""
    x, y, z = grid
    return x * y + x * z + y * z


def aspect(shape: Triple) -> float:
    """Return the ratio of the shortest to the longest side, which is 1 for a cube."""
    return min(shape) / max(shape)


def good_ranks(ranks: int) -> tuple[int, ...]:
    """Return the nearest numbers of ranks, below and above, for which the process grid satisfies the aspect rule.

    If the grid of `ranks` itself satisfies the rule, return only `ranks`.
    """
    if _good(ranks):
        return (ranks,)
    below = next(fewer for fewer in range(ranks - 1, 0, -1) if _good(fewer))
    above = next(more for more in range(ranks + 1, 2 * ranks + 2) if _good(more))  # a power of 2 is in this range
    return below, above


def _good(ranks: int) -> bool:
    return aspect(process_grid(ranks)) >= MIN_ASPECT


def good_sizes(n: int, levels: int = LEVELS) -> tuple[int, ...]:
    """Return the nearest box sides below and above n that can be halved levels - 1 times.

    If n itself can be halved as often, return only n.
    """
    step = 2 ** (levels - 1)
    below = n // step * step
    return (n,) if below == n else tuple(size for size in (below, below + step) if size)


def largest_cube(levels: int = LEVELS) -> int:
    """Return the side of the largest cubic box that can be halved levels - 1 times and satisfies 27·n³ <= 2^31 - 1.

    A 32-bit integer can then count the entries of the box.
    """
    step: int = 2 ** (levels - 1)
    n = step
    while STENCIL * (n + step) ** 3 <= INT32_MAX:
        n += step
    return n


def check_box(box: Box, *, rules: bool = True, by_box: bool = False) -> None:
    """Raise UsageError for a box that mxpeak cannot use or, if `rules`, that breaks the rules of HPCG and HPG-MxP.

    The message names --box if `by_box`, otherwise --nx, --ny or --nz.
    """
    flags = ShapeFlags(box.shape, by_box)
    _check_halving(flags, MIN_SIDE if rules else 1)
    if rules:
        _check_sides(flags)
        _check_local_aspect(box.shape)
        _check_grid_aspect(box.grid)
    if STENCIL * box.rows > INT32_MAX:
        raise UsageError(
            f"a local box of {times(box.shape)} has {STENCIL}*{'*'.join(map(str, box.shape))} = "
            f"{STENCIL * box.rows} entries, but 32-bit indices support at most 2^31-1 = {INT32_MAX}; use "
            f"{flag_of_cube(largest_cube(), by_box=by_box)}, the largest cube, on more ranks"
        )


def flag_of_cube(side: int, *, by_box: bool) -> str:
    """Return the flag that sets all sides of a box to the same value: --box if `by_box`, otherwise --nx."""
    return f"--box {times((side,) * 3)}" if by_box else f"--nx {side}"


@dataclass(frozen=True, slots=True)
class ShapeFlags:
    """The flags that set the sides of a box: --box if `by_box`, otherwise --nx, --ny and --nz."""

    shape: Triple
    by_box: bool

    def side(self, axis: int) -> str:
        """Return text that names the side of this axis with its flag and its value."""
        n = self.shape[axis]
        return f"--box {times(self.shape)}: {n}" if self.by_box else f"--n{'xyz'[axis]} {n}"

    def better(self, axis: int, sizes: Iterable[int], corrected: Callable[[int], int]) -> str:
        """Return the flags that set the side of this axis to each of the sizes.

        With --box, each other side is `corrected`, so that a box with several wrong sides needs one correction.
        """
        if not self.by_box:
            return " or ".join(f"--n{'xyz'[axis]} {size}" for size in sizes)
        others = [corrected(n) for n in self.shape]
        return " or ".join(f"--box {times([*others[:axis], size, *others[axis + 1 :]])}" for size in sizes)


def _check_halving(flags: ShapeFlags, least: int) -> None:
    step = 2 ** (LEVELS - 1)
    for axis, n in enumerate(flags.shape):
        if n % step:
            sizes = dict.fromkeys(max(size, least) for size in good_sizes(n))
            better = flags.better(axis, sizes, lambda side: max(good_sizes(side)[0], least))
            raise UsageError(
                f"{flags.side(axis)} is not a multiple of {step}, as {LEVELS} levels of multigrid need ({n} / "
                f"{step} leaves a remainder of {n % step}); use {better}"
            )


def _check_sides(flags: ShapeFlags) -> None:
    for axis, n in enumerate(flags.shape):
        if n < MIN_SIDE:
            better = flags.better(axis, (MIN_SIDE,), lambda side: max(side, MIN_SIDE))
            raise UsageError(
                f"{flags.side(axis)} is less than {MIN_SIDE}, the smallest value that the rules allow; use "
                f"{better}, or --mode explore"
            )


def _check_local_aspect(shape: Triple) -> None:
    if aspect(shape) < MIN_ASPECT:
        least, largest = int(max(shape) * MIN_ASPECT), int(min(shape) / MIN_ASPECT)
        raise UsageError(
            f"{_ratio('the local box', shape)}; use sides of at least {good_sizes(least)[-1]}, sides of at "
            f"most {largest}, or --mode explore"
        )


def _check_grid_aspect(grid: Triple) -> None:
    if aspect(grid) >= MIN_ASPECT:
        return
    ranks, best = prod(grid), process_grid(prod(grid))
    if _good(ranks):
        advice = "use " + " ".join(f"--np{name} {n}" for name, n in zip("xyz", best))
    else:
        counts = " or ".join(f"{count} ({times(process_grid(count))})" for count in good_ranks(ranks))
        advice = f"{times(best)} is the best grid for {ranks} ranks, so start {counts} ranks"
    raise UsageError(f"{_ratio('the process grid', grid)}; {advice}, or use --mode explore")


def _ratio(what: str, shape: Triple) -> str:
    return (
        f"{what} {times(shape)} is too far from a cube: its shortest side divided by its longest is "
        f"{min(shape)}/{max(shape)} = {aspect(shape):.3g}, but the rules need at least {MIN_ASPECT}"
    )


def times(shape: Sequence[int]) -> str:
    """Format three integers in the form 2x2x4."""
    return "x".join(map(str, shape))


def _triple(values: Iterable[int]) -> Triple:
    x, y, z = values
    return x, y, z
