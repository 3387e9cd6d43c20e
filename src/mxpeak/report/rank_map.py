"""Draw the process grid as an HTML table, colored by node. The tooltip of each rank shows its host and cores."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mxpeak.layout.grid import ProcessGrid

#: Maximum number of ranks on a map.
MAX_RANKS = 1024
#: Number of node colors. Colors may repeat, but neighbors on different nodes must differ.
COLOURS = 6


def rank_map(problem: Mapping[str, Any], launch: Mapping[str, Any]) -> str:
    """Return the HTML map of the ranks, or "" for a single rank or more than MAX_RANKS ranks."""
    bound = launch.get("binding") or []
    if not 1 < len(bound) <= MAX_RANKS:
        return ""
    ranks = {int(rank.get("rank", k)): rank for k, rank in enumerate(bound)}
    hosts = {host: k for k, host in enumerate(dict.fromkeys(str(rank.get("host")) for rank in bound))}
    parts = []
    for title, rows in _layers(problem, len(ranks)):
        lines = "".join(f"<tr>{''.join(_cell(ranks.get(rank), rank, hosts) for rank in row)}</tr>" for row in rows)
        caption = f"<caption>{html.escape(title)}</caption>" if title else ""
        parts.append(f'<table class="ranks">{caption}{lines}</table>')
    legend = "".join(f'<li><span class="key c{k % COLOURS}">■</span> {html.escape(h)}</li>' for h, k in hosts.items())
    return f'<div class="wide">{"".join(parts)}</div><ul class="legend">{legend}</ul>'


def _cell(bound: Mapping[str, Any] | None, rank: int, hosts: Mapping[str, int]) -> str:
    if bound is None:
        return f"<td>{rank}</td>"
    threads = bound.get("threads", 1)
    where = f"rank {rank} on {bound.get('host')}: {threads} thread{'s' * (threads != 1)} on cores {bound.get('cores')}"
    colour = hosts[str(bound.get("host"))] % COLOURS
    return f'<td class="c{colour}" title="{html.escape(where, quote=True)}">{rank}</td>'


def _layers(problem: Mapping[str, Any], ranks: int) -> Iterator[tuple[str, list[Sequence[int]]]]:
    """Yield the title and the rows of ranks of each layer of the P×Q or npx×npy×npz grid.

    Without a grid, all ranks are in one row.
    """
    P, Q = problem.get("P"), problem.get("Q")
    if P and Q and ranks == P * Q:
        node_grid = problem.get("node_grid")
        grid = ProcessGrid(P, Q, str(problem.get("order") or "row"), tuple(node_grid) if node_grid else None)
        title = f"{P} process row{'s' * (P > 1)}, {Q} column{'s' * (Q > 1)}"
        yield title, [[grid.rank(p, q) for q in range(Q)] for p in range(P)]
        return
    npx, npy, npz = (problem.get(f"np{axis}") or 1 for axis in "xyz")
    if npx * npy * npz != ranks:
        yield "", [range(ranks)]
        return
    for layer in range(npz):
        first = layer * npx * npy
        title = f"layer {layer + 1} of {npz} in z, rows along x" if npz > 1 else "rows along x"
        yield title, [range(first + row * npx, first + (row + 1) * npx) for row in range(npy)]
