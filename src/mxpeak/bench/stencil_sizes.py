"""Which box of the 27-point problem each rank has: sizes, process grid, rules, and what fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from mxpeak.configs.grid import squarest
from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.stencil import LEAST_SIDE, LEVELS, STENCIL, Box, Triple, check_box, largest_cube, process_grid, times
from mxpeak.records import Caution, size_text
from mxpeak.runtime.memory import MARGIN, Budget

#: A rank's box where none was asked for, and with --quick: on the host the reference's, and what fills a GPU.
DEFAULT_NX, QUICK_NX = 104, 64
GPU_NX, GPU_QUICK_NX = 256, 128
#: Bytes of a 32-bit column number, and of an entry while the matrix is made: a double and its column number.
INDEX_BYTES, SETUP_BYTES = 4, 12
#: Bytes of an entry while a device packs it, and how many entries it packs together: sorted keys and their places.
PACKING_BYTES, PIECE = 132, 2**22
#: Of a column number of packed chunks, at most: successive rows share one.
PACKED_BYTES = 1
FP64_BYTES = 8
#: Entries a row that the next level's points have once more: 13 of every eighth row, and more at the box's surface.
POINTS = 2
#: Rows of a group of such points in a packed chunk: it ends with their line, and zeros fill it.
POINTS_GROUP = 8


# --- the box ----------------------------------------------------------------------------------------------------


def box_of(config: SparseConfig, rank: int, ranks: int, levels: int = LEVELS) -> Box:
    """The box of `rank`; what no box can be had for raises here, on every rank alike, before anything runs."""
    default, quick = (GPU_NX, GPU_QUICK_NX) if config.on_gpu else (DEFAULT_NX, QUICK_NX)
    nx = quick if config.quick else default
    box = Box.of(rank, config.shape or (nx, nx, nx), completed_grid(config, ranks))
    check_box(box, levels, rules=config.mode == "official")
    return box


def completed_grid(config: SparseConfig, ranks: int) -> Triple:
    """Return the process grid: the sides that were given, and the rest as near to a cube as they allow."""
    asked = {name: n for name in ("npx", "npy", "npz") if (n := getattr(config, name)) is not None}
    if not asked:
        return process_grid(ranks)
    taken = prod(asked.values())
    if ranks % taken or (len(asked) == 3 and taken != ranks):
        raise UsageError(_misfit(asked, ranks, process_grid(ranks)))
    rest = ranks // taken
    open_sides = iter((rest,) if len(asked) == 2 else squarest(rest))
    npx, npy, npz = (asked[name] if name in asked else next(open_sides) for name in ("npx", "npy", "npz"))
    return npx, npy, npz


def _misfit(asked: dict[str, int], ranks: int, default: Triple) -> str:
    """Why the sides asked for make no process grid of all ranks, and what to type instead."""
    taken, factors = prod(asked.values()), "*".join(map(str, asked.values()))
    flags = " ".join(f"--{name} {n}" for name, n in asked.items())
    if len(asked) == 3:
        why = f"{flags} needs {factors} = {taken} ranks, but there {'is' if ranks == 1 else 'are'} {ranks}"
    else:
        given = f"{factors} = {taken}, and " if len(asked) == 2 else ""
        why = (
            f"{flags} does not divide the number of ranks: {given}{ranks} / {taken} leaves a remainder of "
            f"{ranks % taken}"
        )
    start = taken if len(asked) == 3 else taken * max(1, round(ranks / taken))
    return (
        f"{why}; start {start} ranks (--ranks {start}, or mpiexec -n {start}), or remove {flags} "
        f"for the grid {times(default)}"
    )


# --- memory -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """What one solver keeps: a matrix a level, vectors for multigrid, and a Krylov basis.

    value_bytes    bytes of a stored value, a level
    vector_bytes   bytes of a vector's entry
    basis          vectors of the Krylov basis
    index_bytes    bytes of a stored column number
    points_apart   whether L or U of the next level's points stands once more by itself: so in the natural order on CPUs
    joined         whether matrices are packed in pieces, and these joined: so on devices
    """

    value_bytes: tuple[int, ...]
    vector_bytes: int
    basis: int = 0
    index_bytes: int = INDEX_BYTES
    points_apart: bool = False
    joined: bool = False


def memory_need(box: Box, hierarchies: Sequence[Hierarchy]) -> dict[str, int]:
    """The most bytes that a rank holds at a time, the fullest: one with neighbours all around.

    With n_l rows and h_l halo points a level, N = n_0, of each hierarchy, at 27 entries a row,
      matrix    Σ 27·n_l·(value + index)           and points(l)·n_l·(value + index) for the next level's points
      vectors   Σ 3·(n_l + h_l)·vector             r, x and what comes of A x; and 5·8·(N + h_0) for the outer solver
      halo      Σ 2·h_l·vector                     sent, received
      basis     the largest basis·N·vector         solves follow one another
      setup     12·27·N                            the finest matrix as it is made; where pieces of it are joined, as
                                                   it is stored once more, 27·N·(value + index), or what a piece takes
                                                   as it is packed, 132·min(27·N, 2^22), the larger of the two
    total       matrix + vectors + halo + the larger of basis and setup: the first solve follows the last matrix.
    """
    box = replace(box, px=box.npx // 2, py=box.npy // 2, pz=box.npz // 2)
    parts = dict.fromkeys(("matrix", "vectors", "halo"), 0)
    for one in hierarchies:
        for level, value_bytes in zip(box.levels(len(one.value_bytes)), one.value_bytes):
            entries = STENCIL * level.rows + (points_entries(level, one) if one.points_apart else 0)
            parts["matrix"] += entries * (value_bytes + one.index_bytes)
            parts["vectors"] += 3 * (level.rows + level.halo) * one.vector_bytes
            parts["halo"] += 2 * level.halo * one.vector_bytes
    parts["vectors"] += 5 * (box.rows + box.halo) * FP64_BYTES
    basis = max(one.basis * one.vector_bytes for one in hierarchies) * box.rows
    entries = STENCIL * box.rows
    joined = max((one.value_bytes[0] + one.index_bytes for one in hierarchies if one.joined), default=0)
    packing = PACKING_BYTES * min(entries, PIECE) if joined else 0
    setup = SETUP_BYTES * entries + max(joined * entries, packing)
    return {**parts, "basis": basis, "setup": setup, "total": sum(parts.values()) + max(basis, setup)}


def points_entries(level: Box, one: Hierarchy) -> int:
    """Entries that the next level's points have once more: 2 a row, or 13/8 with what packed groups are filled with."""
    if one.index_bytes != PACKED_BYTES:
        return POINTS * level.rows
    points = max(1, level.nx // 2)
    lanes = POINTS_GROUP * -(-points // POINTS_GROUP)
    return max(POINTS * level.rows, -(-13 * lanes * level.rows // (8 * points)))


def fitted(
    box: Box, config: SparseConfig, hierarchies: Sequence[Hierarchy], budget: Budget
) -> tuple[Box, Caution | None]:
    """The box, if every node has room for it; one smaller, with a caution, if its size was left open."""
    need, given = _node_need(box, hierarchies, budget), config.shape is not None
    node_bytes = budget.limit if given else budget.default
    if need <= node_bytes:
        return box, None
    nx = largest_fitting(box, hierarchies, budget, node_bytes)
    if given or not nx:
        raise ResourceError(_too_large(box, memory_need(box, hierarchies), need, node_bytes, nx))
    text = (
        f"local boxes of {times(box.shape)} need {size_text(need)} per node, but only "
        f"{size_text(node_bytes)} per node is available, so mxpeak uses {times((nx, nx, nx))}"
    )
    return replace(box, nx=nx, ny=nx, nz=nx), Caution("size", text, "use --nx, or a larger --mem")


def largest_fitting(box: Box, hierarchies: Sequence[Hierarchy], budget: Budget, node_bytes: int) -> int:
    """The side of the largest cubic box, on the same ranks, for which `node_bytes` of a node suffice; 0: none."""
    levels = max(len(one.value_bytes) for one in hierarchies)
    step = 2 ** (levels - 1)
    cubes = (replace(box, nx=n, ny=n, nz=n) for n in range(largest_cube(levels), LEAST_SIDE - 1, -step))
    return next((cube.nx for cube in cubes if _node_need(cube, hierarchies, budget) <= node_bytes), 0)


def line(box: Box, hierarchies: Sequence[Hierarchy], budget: Budget) -> str:
    """The problem and its memory, for a dry run."""
    parts = memory_need(box, hierarchies)
    text = (
        f"local {times(box.shape)}  ranks {times(box.grid)}  global {times(box.global_shape)}: {box.global_rows} rows, "
        f"{box.global_nnz} entries; per rank: matrices {size_text(parts['matrix'])}, total {size_text(parts['total'])}"
    )
    fits = fits_in(box, hierarchies, budget)
    return text if fits else f"{text}; does not fit: a node has {size_text(budget.limit)}"


def fits_in(box: Box, hierarchies: Sequence[Hierarchy], budget: Budget) -> bool:
    """Whether every node has room for the box."""
    return _node_need(box, hierarchies, budget) <= budget.limit


def _node_need(box: Box, hierarchies: Sequence[Hierarchy], budget: Budget) -> int:
    total = box.ranks * memory_need(box, hierarchies)["total"]
    return budget.need(lambda n, nb, P, Q: {"total": total}, box.global_rows, 1, box.ranks, 1)


def _too_large(box: Box, parts: dict[str, int], need: int, node_bytes: int, most: int) -> str:
    what = ", ".join(f"{name} {size_text(parts[name])}" for name in ("matrix", "vectors", "halo", "basis", "setup"))
    advice = (
        f"use --nx {most}, the largest cube that fits"
        if most
        else f"even --nx {LEAST_SIDE} does not fit, so use more nodes or a larger --mem"
    )
    return (
        f"a local box of {times(box.shape)} needs {what}, of which the last two are not used at the same "
        f"time: the total is {size_text(parts['total'])} per rank and {size_text(need)} per node, but "
        f"{size_text(node_bytes)} per node is available (free memory less {1 - MARGIN:.0%}, or --mem); "
        f"{advice}"
    )
