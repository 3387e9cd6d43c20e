"""Estimate the memory per rank of distributed systems; raise an error before the allocation if it is too large."""

from __future__ import annotations

from math import ceil, isqrt

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.errors import ResourceError
from mxpeak.layout.block_cyclic import numroc
from mxpeak.perf.counts import hpl_memory_bytes
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.memory import MARGIN
from mxpeak.runtime.nodes import nodes_of

#: Largest number of vectors of length n that every rank stores per right-hand side: b and x, this rank's parts of b
#: and x, residuals, sums of a solve, and messages.
VECTORS = 10


def bytes_a_rank(n: int, nb: int, P: int, Q: int, *, held: bool, parts: int = 1) -> int:
    """Return the bytes that the rank with the largest part of the matrix needs for a system of order n.

    The estimate includes the factors, panels, row swaps and vectors, and also A if `held`. `parts` is 1 for a real
    system and 2 for a complex system, which is factored as a real system of order 2n.
    """
    n, nb = parts * n, parts * nb
    m, k = numroc(n, nb, 0, P), numroc(n, nb, 0, Q)
    swaps, part = 8 * 3 * nb * k if P > 1 else 0, 8 * m * k // parts if held else 0
    return hpl_memory_bytes(n, nb, P, Q)["total"] // (P * Q) + swaps + part + 8 * VECTORS * n


def check_memory(
    comm: Communicator, n: int, nb: int, grid: tuple[int, int], *, held: bool, in_use: int = 0, parts: int = 1
) -> int:
    """Return the bytes that a rank needs; raise a ResourceError if a node has too little memory. Collective.

    The check counts the bytes `in_use`, which this rank already occupies, as free.
    """
    ranks_per_node, free = _free_bytes(comm, in_use)
    need = bytes_a_rank(n, nb, *grid, held=held, parts=parts)
    if need <= free:
        return need
    enough = _enough_ranks(n, nb, comm.size, free, held=held, parts=parts)
    size = 8 * parts * (parts + held)
    what = f"{'A and its factors' if held else 'the factors of A'} ({size}*{n}*{n} bytes)"
    started = f"client.cluster.scale({enough})" if comm.name == "sockets" else f"mpiexec -n {enough} python ..."
    instead = f"use {enough} ranks on nodes of this kind: {started}"
    if not enough:
        instead = f"more ranks do not help, because each of them stores {VECTORS} vectors, so use fewer ranks per node"
    raise ResourceError(
        f"{what} and the panels need {size_text(need)} per rank on {grid[0]}x{grid[1]} ranks, but only "
        f"{size_text(free)} per rank is available with {ranks_per_node} ranks per node; {instead}"
    )


def check_rhs_memory(comm: Communicator, n: int, k: int, parts: int, parts_of_A: int) -> None:
    """Raise a ResourceError if b (n, k) and x do not fit into memory next to the factors. Collective.

    Every rank stores b and x completely. `parts` and `parts_of_A` are the numbers of real values per entry.
    """
    more = parts * k - parts_of_A  # the memory of the factors includes one right-hand side
    if not more:
        return
    _, free = _free_bytes(comm, 0)
    need = 8 * VECTORS * n * more
    if need > free:
        instead = "use fewer columns at a time" if k > 1 else "use fewer ranks per node"
        raise ResourceError(
            f"b with {k} column{'s' * (k > 1)}, x and the residuals need {VECTORS}*{8 * parts}*{n}*{k} "
            f"bytes ({size_text(need)}) on every rank, but only {size_text(free)} per rank is available; "
            f"{instead}"
        )


def _free_bytes(comm: Communicator, in_use: int) -> tuple[int, int]:
    """Return the largest number of ranks per node, and the smallest available memory per rank in bytes. Collective.

    The available memory is the free memory plus `in_use`, the bytes that the rank already uses.
    """
    ranks_per_node = nodes_of(comm, None).max_ranks
    free = int(MARGIN * (available_memory_bytes() or 2**63)) // ranks_per_node
    return ranks_per_node, -int(allreduce_scalar(comm, -float(free + in_use), "max"))


def _enough_ranks(n: int, nb: int, ranks: int, free: int, *, held: bool, parts: int) -> int:
    """Return the smallest number of ranks above `ranks` at which a rank needs at most `free` bytes.

    Return 0 if there is none. The grids s×s and s×(s+1) are considered.
    """
    if 8 * VECTORS * parts * n >= free:
        return 0
    blocks = ceil(n / nb)
    grids = ((P, Q) for P in range(max(1, isqrt(ranks)), blocks + 1) for Q in (P, P + 1))
    enough = (P * Q for P, Q in grids if ranks < P * Q and bytes_a_rank(n, nb, P, Q, held=held, parts=parts) <= free)
    return next(enough, 0)
