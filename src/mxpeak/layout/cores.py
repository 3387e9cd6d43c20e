"""CPU cores of one node and the ranks on it: who computes where, and which cores are used in turn.

In each step of an LU only one process column factors the panel; the other columns' ranks wait for it.  So the ranks
of a process row, which never factor at the same time, may share cores (Chalmers et al. 2023, III-B): each rank keeps
one root core to itself, and the C - PQ others form a pool that is cut into P groups, one for each process row.

    threads of a rank  T = 1 + (C - PQ) / P          cores at work in every panel  P T = P + (C - PQ)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid


def core_masks(
    cores: Sequence[int], node_grid: tuple[int, int], roots: Sequence[int] | None, order: str = "row", *, share: bool
) -> list[list[int]]:
    """The cores of each local rank, its root core first.

    With `share`, a rank's mask is its root and the group of the pool that belongs to its process row.  Without it,
    the cores are cut into one contiguous, nearly equal part a rank, and `roots` are not used.  With more ranks than
    cores the cores are dealt round-robin, one a rank, whatever `share` says: see `oversubscribed`.
    """
    grid = ProcessGrid(*node_grid, order=order)
    _check_cores(cores)
    if oversubscribed(cores, grid.size):
        return [[cores[rank % len(cores)]] for rank in range(grid.size)]
    if not share:
        return _parts(cores, grid.size)
    if roots is None:
        roots = root_cores([cores], grid.size)
    _check_roots(cores, roots, grid)
    groups = _parts(_pool(cores, roots, grid), grid.P)
    return [[roots[rank], *sorted(groups[grid.coords(rank)[0]])] for rank in range(grid.size)]


def oversubscribed(cores: Sequence[int], ranks: int) -> bool:
    """Whether some core must serve two ranks at once, because there are more ranks than cores."""
    return ranks > len(cores)


def root_cores(domains: Sequence[Sequence[int]], ranks: int) -> list[int]:
    """A root core for each local rank, spread over `domains` (NUMA nodes, or groups of cores with one L3 cache).

    Domains get as equal a number of roots as their cores allow, and within a domain roots are equally far apart.
    Consecutive ranks stay in the same or in neighbouring domains.
    """
    domains = [domain for domain in domains if domain]
    total = sum(len(domain) for domain in domains)
    if ranks > total:
        raise UsageError(
            f"{ranks} ranks need {ranks} root cores, but the {len(domains)} domains hold {total} cores; "
            f"start at most {total} ranks on this node"
        )
    if ranks <= len(domains):
        return [domains[rank * len(domains) // ranks][0] for rank in range(ranks)]
    counts = _dealt([len(domain) for domain in domains], ranks)
    return [part[0] for domain, count in zip(domains, counts) for part in _parts(domain, count)]


def render_core_map(
    masks: Sequence[Sequence[int]], node_grid: tuple[int, int], order: str = "row", first_rank: int = 0
) -> str:
    """The core map as text, one line a rank: its place in the grid, root core, number of threads, all its cores."""
    grid = ProcessGrid(*node_grid, order=order)
    users = Counter(core for mask in masks for core in mask)
    crowded = Counter(mask[0] for mask in masks)
    lines = []
    for local, mask in enumerate(masks):
        p, q = grid.coords(local)
        threads = f"{len(mask)} thread" + ("s" if len(mask) > 1 else "")
        note = "  (oversubscribed)" if crowded[mask[0]] > 1 else ""
        lines.append(
            f"rank {first_rank + local:>4} at ({p}, {q})  root core {mask[0]:>3}  {threads:>11}  "
            f"on cores {core_ranges(mask)}{note}"
        )
    shared = sorted(core for core, count in users.items() if count > 1)
    if shared and len(crowded) == len(masks):
        lines.append(f"shared in turn by the ranks of a process row: cores {core_ranges(shared)}")
    return "\n".join(lines)


def core_ranges(cores: Sequence[int]) -> str:
    """Core numbers as a short list such as 0-3,8,10-11."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _pool(cores: Sequence[int], roots: Sequence[int], grid: ProcessGrid) -> list[int]:
    # A pool core goes, as far as equal groups allow, to the process row of the root that stands before it in `cores`:
    # numbering follows caches, so a row's group lies near the row's roots.
    rank_of_root = {root: rank for rank, root in enumerate(roots)}
    row = grid.coords(next(rank_of_root[core] for core in cores if core in rank_of_root))[0]
    pool: list[tuple[int, int]] = []
    for core in cores:
        if core in rank_of_root:
            row = grid.coords(rank_of_root[core])[0]
        else:
            pool.append((row, core))
    return [core for _, core in sorted(pool, key=lambda item: item[0])]


def _parts(cores: Sequence[int], count: int) -> list[list[int]]:
    # Contiguous parts; the first len(cores) mod count of them have one core more.
    size, longer = divmod(len(cores), count)
    starts = [part * size + min(part, longer) for part in range(count + 1)]
    return [list(cores[begin:end]) for begin, end in pairwise(starts)]


def _dealt(room: Sequence[int], ranks: int) -> list[int]:
    # One rank at a time to the domain that has fewest, among those with a free core.
    counts = [0] * len(room)
    for _ in range(ranks):
        counts[min((d for d in range(len(room)) if counts[d] < room[d]), key=lambda d: counts[d])] += 1
    return counts


def _check_cores(cores: Sequence[int]) -> None:
    if not cores:
        raise UsageError("no core to bind to: the list of cores is empty")
    if len(set(cores)) != len(cores):
        twice = sorted(core for core, count in Counter(cores).items() if count > 1)
        raise UsageError(f"cores are listed twice: {core_ranges(twice)}; name each core once")


def _check_roots(cores: Sequence[int], roots: Sequence[int], grid: ProcessGrid) -> None:
    if len(roots) != grid.size:
        raise UsageError(
            f"the node grid {grid.P}x{grid.Q} has {grid.P}*{grid.Q} = {grid.size} ranks, "
            f"but {len(roots)} root cores were given; give one a rank"
        )
    if len(set(roots)) != len(roots):
        raise UsageError(f"two ranks have the same root core: {list(roots)}; give each rank its own")
    strangers = sorted(set(roots) - set(cores))
    if strangers:
        raise UsageError(f"root cores {core_ranges(strangers)} are not among the cores {core_ranges(cores)}")
