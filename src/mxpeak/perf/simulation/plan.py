"""Choose N, NB, P×Q and the node's part of the grid for given ranks and memory, and warn about unfavorable values."""

from __future__ import annotations

import math
from functools import partial

from mxpeak.configs.grid import squarest
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.block_cyclic import numroc
from mxpeak.perf.counts import Footprint, hpl_memory_bytes, largest_n, mxp_memory_bytes
from mxpeak.perf.simulation.machines import Curve, Machine
from mxpeak.precision import precision, stored_as
from mxpeak.records import Caution, size_text

#: Share of the best rate that a block size must reach. Larger blocks take more time in steps without overlap.
GOOD_RATE = 0.97
#: Maximum share by which N may be reduced so that all ranks have whole blocks.
GIVEN_UP = 0.03
#: Distance between candidate block sizes.
STEP = 64
#: Limits for warnings: the ratio P/Q, and the number of bytes of which no leading dimension should be a multiple.
TALL, POWER = 4, 4096


def footprint_of(benchmark: str, low: str, background: bool, depth: int) -> Footprint:
    """Return the function that computes the bytes of a run of this benchmark.

    It omits the inverses that devices keep, and the third panel of a split update.
    """
    if benchmark == "hpl":
        return hpl_memory_bytes
    stored = precision(stored_as(low)).bytes
    return partial(mxp_memory_bytes, stored=stored, operand=stored, background=background, depth=depth)


def good_block(gemm: Curve) -> int:
    """Return the smallest block size, a multiple of 64, at which products reach GOOD_RATE times their best rate."""
    first, last = int(gemm.points[0][0]), int(gemm.points[-1][0])
    best = max(rate for _, rate in gemm.points)
    sizes = [size for size in range(STEP, last + 1, STEP) if size >= first] or [last]
    return next((size for size in sizes if gemm(size) >= GOOD_RATE * best), last)


def smaller_block(gemm: Curve, nb: int) -> int | None:
    """Return about half of a block size, a multiple of 64, or None if the rates of smaller blocks are unknown."""
    least = -(-int(gemm.points[0][0]) // STEP) * STEP
    return max(least, nb // 2 // STEP * STEP) if nb > least else None


def good_order(budget_bytes: int, nb: int, P: int, Q: int, footprint: Footprint) -> int:
    """Return the largest N that fits into `budget_bytes`.

    N is a multiple of NB·lcm(P, Q) if this reduces N by at most GIVEN_UP, and otherwise a multiple of NB.
    """
    n = largest_n(budget_bytes, nb, P, Q, footprint)
    whole = nb * math.lcm(P, Q)
    return n // whole * whole if n >= whole and n % whole <= GIVEN_UP * n else n


def check_fit(benchmark: str, n: int, nb: int, P: int, Q: int, low: str, per_rank: float, footprint: Footprint) -> None:
    """Raise a ResourceError if a run needs more than `per_rank` bytes of memory per rank."""
    need = footprint(n, nb, P, Q)
    if need["total"] <= per_rank * P * Q:
        return
    fits = largest_n(int(per_rank) * P * Q, nb, P, Q, footprint)
    entry = 8 if benchmark == "hpl" else precision(stored_as(low)).bytes
    raise ResourceError(
        f"N = {n} needs {entry}*N*N / ({P}*{Q}) = {size_text(need['matrix'] / P / Q)} per rank for the "
        f"matrix, and {size_text(need['total'] / P / Q)} with buffers, but a rank has only "
        f"{size_text(per_rank)}; use -N {fits}, the largest N that fits, a larger --mem, or more ranks"
    )


def prime_caution(ranks: int) -> list[Caution]:
    """Return a caution if the number of ranks is prime, because its only process grids are a single row or column."""
    if ranks <= 3 or squarest(ranks)[0] > 1:
        return []
    near = max(range(max(4, ranks - 8), ranks), key=lambda r: (squarest(r)[0], r))
    text = f"{ranks} is prime, so its only grids are 1x{ranks} and {ranks}x1, where messages cross all ranks"
    return [Caution("prime-ranks", text, f"use {near} ranks, {'x'.join(map(str, squarest(near)))}")]


def part_node_caution(ranks: int, per_node: int) -> list[Caution]:
    """Return a caution if the last node has fewer ranks than the other nodes."""
    over = ranks % per_node
    if ranks < per_node or not over:
        return []
    below = ranks - over
    text = f"{ranks} ranks at {per_node} per node leave only {over} on the last node"
    return [Caution("part-of-a-node", text, f"use {below} or {below + per_node} ranks")]


def lu_cautions(n: int, nb: int, P: int, Q: int, element_bytes: int) -> list[Caution]:
    """Return cautions about an unfavorable process grid, order or leading dimension."""
    ranks, cautions = P * Q, prime_caution(P * Q)
    if P >= TALL * Q:
        cautions.append(
            Caution(
                "tall-grid",
                f"P = {P} is {P / Q:.3g} times Q = {Q}, so every pivot and every U crosses P ranks",
                f"use --grid {'x'.join(map(str, squarest(ranks)))}",
            )
        )
    ragged = [
        f"{name}*NB = {side}*{nb} leaves {n % (side * nb)}" for name, side in (("P", P), ("Q", Q)) if n % (side * nb)
    ]
    if ragged:
        whole = nb * math.lcm(P, Q)
        below = n // whole * whole or n // nb * nb
        cautions.append(
            Caution(
                "ragged",
                f"N = {n} does not divide into whole blocks on all ranks: {', '.join(ragged)}",
                f"use -N {below}" if below else "use a larger -N",
            )
        )
    local = numroc(n, nb, 0, P)
    if local * element_bytes % POWER == 0 and local & (local - 1) == 0:
        cautions.append(
            Caution(
                "leading-dimension",
                f"a rank has {local} rows, a power of two, so its columns map to the same cache sets",
                f"use -N {n - nb * P}" if n > nb * P else "use another -N",
            )
        )
    return cautions


def check_ranks(machine: Machine, ranks: int) -> None:
    """Raise a UsageError if a run needs more ranks than the machine has."""
    if machine.nodes is not None and ranks > machine.nodes * machine.ranks_per_node:
        limit = machine.nodes * machine.ranks_per_node
        raise UsageError(
            f"{ranks} ranks need {ranks} / {machine.ranks_per_node} = {ranks / machine.ranks_per_node:.6g} "
            f"nodes, but {machine.name} has only {machine.nodes}; use at most "
            f"{machine.nodes}*{machine.ranks_per_node} = {limit} ranks"
        )
