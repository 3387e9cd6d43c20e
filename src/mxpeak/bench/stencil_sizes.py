"""Choose each rank's box of the 27-point problem by sizes, process grid, rules and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mxpeak.configs.grid import squarest
from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.stencil import (
    MIN_SIDE,
    STENCIL,
    Box,
    Triple,
    check_box,
    device_grid,
    flag_of_cube,
    largest_cube,
    process_grid,
    times,
)
from mxpeak.options import count_text
from mxpeak.records import Caution, size_text
from mxpeak.runtime.memory import MARGIN, Budget

#: The default side of a box, and the side with --quick. The default on the host is that of the reference code; the
#: default on a GPU fills the GPU.
DEFAULT_NX, QUICK_NX = 104, 48
GPU_NX, GPU_QUICK_NX = 256, 128
#: Bytes of a 32-bit column index, and of an entry during the set-up: an fp64 value and its column index.
INDEX_BYTES, SETUP_BYTES = 4, 12
#: Bytes per entry while a device packs it (sorted keys and their positions), and the number of entries per piece.
PACKING_BYTES, PIECE = 132, 2**22
#: Maximum bytes of a column index in packed chunks, because consecutive rows share an index.
PACKED_BYTES = 1
FP64_BYTES = 8
#: Copied entries per row: 13 entries are copied for every eighth row, which is on the next level, and more at the
#: surface of the box.
POINTS = 2
#: Rows per group of copied rows in a packed chunk, which ends at the end of a line and is padded with zeros.
POINTS_GROUP = 8


def box_of(config: SparseConfig, rank: int, ranks: int) -> Box:
    """Return the box of `rank`; raise a UsageError on every rank if the box is not valid."""
    default, quick = (GPU_NX, GPU_QUICK_NX) if config.on_gpu else (DEFAULT_NX, QUICK_NX)
    nx = quick if config.quick else default
    box = Box.of(rank, config.shape or (nx, nx, nx), completed_grid(config, ranks))
    check_box(box, rules=config.mode == "official", by_box=config.sides_from_box)
    return box


def completed_grid(config: SparseConfig, ranks: int) -> Triple:
    """Return the process grid with the given sides. The other sides make the grid as close to a cube as possible."""
    given = {name: n for name in ("npx", "npy", "npz") if (n := getattr(config, name)) is not None}
    if given and config.process_grid == "auto":
        flags = " ".join(f"--{name} {n}" for name, n in given.items())
        raise UsageError(f"--grid auto chooses all sides of the grid, but {flags} also sets it; use only one of them")
    if not given:
        return device_grid(ranks) if config.process_grid == "auto" and config.on_gpu else process_grid(ranks)
    taken = prod(given.values())
    if ranks % taken or (len(given) == 3 and taken != ranks):
        raise UsageError(_misfit(given, ranks, process_grid(ranks)))
    rest = ranks // taken
    open_sides = iter((rest,) if len(given) == 2 else squarest(rest))
    npx, npy, npz = (given[name] if name in given else next(open_sides) for name in ("npx", "npy", "npz"))
    return npx, npy, npz


def _misfit(sides: dict[str, int], ranks: int, default: Triple) -> str:
    """Return the error message for sides that do not form a process grid of all ranks."""
    taken, factors = prod(sides.values()), "*".join(map(str, sides.values()))
    flags = " ".join(f"--{name} {n}" for name, n in sides.items())
    if len(sides) == 3:
        why = (
            f"{flags} needs {factors} = {count_text(taken, 'rank')}, but there {'is' if ranks == 1 else 'are'} {ranks}"
        )
    else:
        product = f"{factors} = {taken}, and " if len(sides) == 2 else ""
        why = (
            f"{flags} does not divide the number of ranks: {product}{ranks} / {taken} leaves a remainder of "
            f"{ranks % taken}"
        )
    start = taken if len(sides) == 3 else taken * max(1, round(ranks / taken))
    return (
        f"{why}; start {count_text(start, 'rank')} (--ranks {start}, or mpiexec -n {start}), or remove {flags} "
        f"for the grid {times(default)}"
    )


@dataclass(frozen=True, slots=True)
class HierarchySize:
    """The sizes that determine the memory of one solver: a matrix per level, multigrid vectors, and a Krylov basis.

    value_bytes    bytes of a stored value per level
    vector_bytes   bytes of a vector entry
    basis          number of vectors of the Krylov basis
    basis_bytes    bytes of a number of the basis; None if they are those of the inner iteration's vectors
    wide_bytes     bytes of a number of the inner iteration's vectors; None if they are those of a vector entry
    index_bytes    bytes of a stored column index
    points_apart   whether the L or U part of the next level's rows is copied, as in the natural order on CPUs
    joined         whether matrices are packed in pieces that are then joined, as on devices
    """

    value_bytes: tuple[int, ...]
    vector_bytes: int
    basis: int = 0
    index_bytes: int = INDEX_BYTES
    points_apart: bool = False
    joined: bool = False
    basis_bytes: int | None = None
    wide_bytes: int | None = None

    @property
    def basis_row(self) -> int:
        """Return the bytes of the basis per row.

        A basis in fewer bits has another vector in full precision. With narrower multigrid vectors, the basis also
        has the corrections and one vector in their format.
        """
        wide = self.wide_bytes or self.vector_bytes
        stored = self.basis_bytes or wide
        corrections = 0 if wide == self.vector_bytes else self.basis * self.vector_bytes
        return self.basis * stored + (0 if stored == wide else wide) + corrections


def memory_need(box: Box, hierarchies: Sequence[HierarchySize]) -> dict[str, int]:
    """Return the maximum memory in bytes of a rank with neighbors on all sides.

    Each hierarchy has n_l rows and h_l halo points on level l, N = n_0, and 27 entries per row:
      matrix    Σ 27·n_l·(value + index)           and points(l)·n_l·(value + index) for the next level's points
      vectors   Σ 3·(n_l + h_l)·vector             r, x and A x; and 5·8·(N + h_0) for the outer solver
      halo      Σ 2·h_l·vector                     sent, received
      basis     the largest basis·N·number         solves run one after the other
      setup     12·27·N                            the finest matrix during the set-up; if pieces are joined, also the
                                                   larger of a second copy, 27·N·(value + index), and of a piece while
                                                   it is packed, 132·min(27·N, 2^22)
    total       matrix + vectors + halo + the larger of basis and setup: the solves start after the set-up.
    """
    box = replace(box, px=box.npx // 2, py=box.npy // 2, pz=box.npz // 2)
    parts = dict.fromkeys(("matrix", "vectors", "halo"), 0)
    for size in hierarchies:
        for level, value_bytes in zip(box.levels(len(size.value_bytes)), size.value_bytes):
            entries = STENCIL * level.rows + (points_entries(level, size) if size.points_apart else 0)
            parts["matrix"] += entries * (value_bytes + size.index_bytes)
            parts["vectors"] += 3 * (level.rows + level.halo) * size.vector_bytes
            parts["halo"] += 2 * level.halo * size.vector_bytes
    parts["vectors"] += 5 * (box.rows + box.halo) * FP64_BYTES
    basis = max(size.basis_row for size in hierarchies) * box.rows
    entries = STENCIL * box.rows
    joined = max((size.value_bytes[0] + size.index_bytes for size in hierarchies if size.joined), default=0)
    packing = PACKING_BYTES * min(entries, PIECE) if joined else 0
    setup = SETUP_BYTES * entries + max(joined * entries, packing)
    return {**parts, "basis": basis, "setup": setup, "total": sum(parts.values()) + max(basis, setup)}


def points_entries(level: Box, size: HierarchySize) -> int:
    """Return the number of copied entries for the rows of the next level.

    There are 2 entries per row. In packed storage, the number is 13/8 per row plus padding, if this is larger.
    """
    if size.index_bytes != PACKED_BYTES:
        return POINTS * level.rows
    points = max(1, level.nx // 2)
    lanes = POINTS_GROUP * -(-points // POINTS_GROUP)
    return max(POINTS * level.rows, -(-13 * lanes * level.rows // (8 * points)))


def fitted(
    box: Box, config: SparseConfig, hierarchies: Sequence[HierarchySize], budget: Budget
) -> tuple[Box, Caution | None]:
    """Return the box if it fits into memory, or a smaller one with a warning if it has the default size.

    Raises a ResourceError if a box that the user chose does not fit, or if no box fits.
    """
    need, given = _node_need(box, hierarchies, budget), config.shape is not None
    node_bytes = budget.limit if given else budget.default
    if need <= node_bytes:
        return box, None
    nx = largest_fitting(box, hierarchies, budget, node_bytes)
    if given or not nx:
        raise ResourceError(_too_large(box, config, memory_need(box, hierarchies), need, node_bytes, nx))
    text = (
        f"local boxes of {times(box.shape)} need {size_text(need)} per node, but only "
        f"{size_text(node_bytes)} per node is available, so mxpeak uses {times((nx, nx, nx))}"
    )
    return replace(box, nx=nx, ny=nx, nz=nx), Caution("size", text, "use --nx, or a larger --mem")


def largest_fitting(box: Box, hierarchies: Sequence[HierarchySize], budget: Budget, node_bytes: int) -> int:
    """Return the side of the largest cubic box that fits into `node_bytes` per node; 0 if none fits."""
    levels = max(len(size.value_bytes) for size in hierarchies)
    step = 2 ** (levels - 1)
    cubes = (replace(box, nx=n, ny=n, nz=n) for n in range(largest_cube(levels), MIN_SIDE - 1, -step))
    return next((cube.nx for cube in cubes if _node_need(cube, hierarchies, budget) <= node_bytes), 0)


def line(box: Box, hierarchies: Sequence[HierarchySize], budget: Budget) -> str:
    """Return the dry-run line with the sizes and the memory of the problem."""
    parts = memory_need(box, hierarchies)
    text = (
        f"local {times(box.shape)}  ranks {times(box.grid)}  global {times(box.global_shape)}: {box.global_rows} rows, "
        f"{box.global_nnz} entries; per rank: matrices {size_text(parts['matrix'])}, total {size_text(parts['total'])}"
    )
    fits = _fits_in(box, hierarchies, budget)
    return text if fits else f"{text}; does not fit: {budget.available}"


def _fits_in(box: Box, hierarchies: Sequence[HierarchySize], budget: Budget) -> bool:
    """Return whether the box fits into every node's memory."""
    return _node_need(box, hierarchies, budget) <= budget.limit


def _node_need(box: Box, hierarchies: Sequence[HierarchySize], budget: Budget) -> int:
    total = box.ranks * memory_need(box, hierarchies)["total"]
    return budget.need(lambda n, nb, P, Q: {"total": total}, box.global_rows, 1, box.ranks, 1)


def _too_large(box: Box, config: SparseConfig, parts: dict[str, int], need: int, node_bytes: int, fitting: int) -> str:
    what = ", ".join(f"{name} {size_text(parts[name])}" for name in ("matrix", "vectors", "halo", "basis", "setup"))
    cube = flag_of_cube(fitting or MIN_SIDE, by_box=config.sides_from_box)
    none = f"even {cube} does not fit, so use more nodes or a larger --mem"
    advice = f"use {cube}, the largest cube that fits" if fitting else none
    if config.study == "strong" and box.ranks > (fewest := min(config.ranks_list or (box.ranks,))):
        flag = "--box" if config.sides_from_box else "--nx"
        advice = (
            f"use a smaller {flag}, which sets the box on {count_text(fewest, 'rank')} that the study divides among "
            f"{box.ranks}"
        )
    return (
        f"a local box of {times(box.shape)} needs {what}, of which the last two are not used at the same "
        f"time: the total is {size_text(parts['total'])} per rank and {size_text(need)} per node, but "
        f"{size_text(node_bytes)} per node is available (free memory less {1 - MARGIN:.0%}, or --mem); "
        f"{advice}"
    )
