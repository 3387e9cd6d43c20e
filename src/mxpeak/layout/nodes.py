"""Check that a node grid matches the hosts of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from mxpeak.errors import UsageError
from mxpeak.layout.cores import short_list
from mxpeak.layout.grid import ProcessGrid, node_grids

#: Number of hosts that an error lists.
MAX_NAMED = 4


def check_node_grid(grid: ProcessGrid, hosts: Sequence[str]) -> None:
    """Raise UsageError unless each block of the node grid is on one host; `hosts` contains the host of each rank."""
    p, q = grid.node_grid or (grid.P, grid.Q)
    for first in range(0, grid.size, p * q):
        ranks = range(first, first + p * q)
        if len({hosts[rank] for rank in ranks}) > 1:
            raise UsageError(f"{_what_lies_where(p, q, ranks, hosts)}; {_fix(grid, p, q, hosts[: grid.size])}")


def fitting_node_grids(grid: ProcessGrid, ranks: int) -> list[str]:
    """Return the node grids with `ranks` ranks per node as command-line options, the nearest to `grid` first."""
    p, q = grid.node_grid or (grid.P, grid.Q)
    grids = sorted(node_grids(grid.P, grid.Q, ranks), key=lambda ab: (abs(ab[0] - p) + abs(ab[1] - q), ab))
    return [f"--node-grid {a}x{b}" for a, b in grids]


def _what_lies_where(p: int, q: int, ranks: range, hosts: Sequence[str]) -> str:
    of_host: dict[str, list[int]] = {}
    for rank in ranks:
        of_host.setdefault(hosts[rank], []).append(rank)
    named = [f"{host} has {short_list(those)}" for host, those in list(of_host.items())[:MAX_NAMED]]
    more = ["..."] if len(of_host) > MAX_NAMED else []
    return (
        f"--node-grid {p}x{q} needs {p}*{q} = {p * q} consecutive ranks on one node, but ranks "
        f"{ranks.start} to {ranks.stop - 1} are on {len(of_host)} nodes: {', '.join(named + more)}"
    )


def _fix(grid: ProcessGrid, p: int, q: int, hosts: Sequence[str]) -> str:
    runs = [(host, len(list(run))) for host, run in groupby(hosts)]
    sizes = {size for _, size in runs}
    by_node = len({host for host, _ in runs}) == len(runs)
    fitting = fitting_node_grids(grid, *sizes)[:2] if by_node and len(sizes) == 1 else []
    if fitting:
        count = sizes.pop()
        has = f"each node has {count} rank{'s' if count > 1 else ''}"
        return f"{has}, so use {' or '.join(fitting)}, or start {p * q} ranks per node"
    return (
        f"start {p * q} ranks per node, numbered node by node (mpiexec -ppn {p * q}, or "
        f"srun --ntasks-per-node={p * q} --distribution=block), or remove --node-grid"
    )
