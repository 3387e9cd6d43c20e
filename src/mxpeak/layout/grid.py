"""Process grids of dense matrices: the position of each rank, and the blocks of ranks on each node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mxpeak.errors import UsageError

#: Numbers of rows and columns of a printed map; a larger grid is truncated, and the map notes this.
MAP_ROWS, MAP_COLUMNS = 32, 16


@dataclass(frozen=True, slots=True)
class ProcessGrid:
    """A P x Q grid of ranks, filled by rows or by columns; with a node grid, in blocks of one node.

    Without a node grid, row order puts rank r at (r div Q, r mod Q), and column order puts it at (r mod P, r div P).
    With a node grid p x q, each p*q consecutive ranks form one p x q block, and the blocks tile the grid. The order
    applies both inside a block and among the blocks. A process column then has more ranks on the same node, which
    reduces the traffic between nodes during the panel factorization (rocHPL's -p and -q; Chalmers et al. 2023, III-B).
    """

    P: int
    Q: int
    order: str = "row"
    node_grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.P < 1 or self.Q < 1:
            raise UsageError(
                f"the process grid {self.P}x{self.Q} is not valid, because P and Q must be at least 1; use, for "
                "example, --grid 1x1"
            )
        if self.order not in ("row", "column"):
            raise UsageError(f"--order {self.order!r} is unknown; use row or column")
        if self.node_grid is not None:
            _check_node_grid(self.P, self.Q, *self.node_grid)

    @property
    def size(self) -> int:
        """Return the number of ranks in the grid, P*Q."""
        return self.P * self.Q

    def coords(self, rank: int) -> tuple[int, int]:
        """Return the process row and column (p, q) of `rank`."""
        if not 0 <= rank < self.size:
            raise IndexError(
                f"rank {rank} is outside the process grid {self.P}x{self.Q} of {self.size} ranks; use a rank "
                f"from 0 to {self.size - 1}"
            )
        p, q = self._block
        node, inner = divmod(rank, p * q)
        node_row, node_column = _coords(node, self.P // p, self.Q // q, self.order)
        row, column = _coords(inner, p, q, self.order)
        return node_row * p + row, node_column * q + column

    def rank(self, p: int, q: int) -> int:
        """Return the rank at process row `p` and process column `q`; raise IndexError outside of the grid."""
        if not (0 <= p < self.P and 0 <= q < self.Q):
            raise IndexError(
                f"process ({p}, {q}) is outside the process grid {self.P}x{self.Q}; use coordinates from (0, 0) "
                f"to ({self.P - 1}, {self.Q - 1})"
            )
        block_P, block_Q = self._block
        node = _index(p // block_P, q // block_Q, self.P // block_P, self.Q // block_Q, self.order)
        return node * block_P * block_Q + _index(p % block_P, q % block_Q, block_P, block_Q, self.order)

    def render(self) -> str:
        """Return a text map of the ranks, one line per process row, with lines between node grids."""
        if self.size == 1:
            return self._title()
        rows, columns = min(self.P, MAP_ROWS), min(self.Q, MAP_COLUMNS)
        node = [[self._node(p, q) for q in range(columns)] for p in range(rows)]
        width = len(str(self.size - 1))
        lines = [self._title()]
        for p in range(rows):
            if p and node[p] != node[p - 1]:
                lines.append(_rule(node[p - 1], node[p], width))
            lines.append(_map_row([self.rank(p, q) for q in range(columns)], node[p], width))
        if (rows, columns) != (self.P, self.Q):
            lines.append(f"  (only {rows} of {self.P} process rows and {columns} of {self.Q} columns are shown)")
        return "\n".join(line.rstrip() for line in lines)

    @property
    def _block(self) -> tuple[int, int]:
        return self.node_grid if self.node_grid is not None else (self.P, self.Q)

    def _node(self, p: int, q: int) -> int:
        block_P, block_Q = self._block
        return self.rank(p, q) // (block_P * block_Q)

    def _title(self) -> str:
        title = f"process grid {self.P}x{self.Q}, {self.order} order"
        if self.node_grid is not None:
            title += f", node grid {self.node_grid[0]}x{self.node_grid[1]}"
        return title


def _coords(index: int, rows: int, columns: int, order: str) -> tuple[int, int]:
    if order == "row":
        return divmod(index, columns)
    return index % rows, index // rows


def _index(row: int, column: int, rows: int, columns: int, order: str) -> int:
    return row * columns + column if order == "row" else column * rows + row


def _check_node_grid(P: int, Q: int, p: int, q: int) -> None:
    if p >= 1 and q >= 1 and P % p == 0 and Q % q == 0:
        return
    raise UsageError(
        f"the node grid {p}x{q} does not divide the process grid {P}x{Q}: {_division(P, p)}, "
        f"{_division(Q, q)}; use --node-grid "
        f"{' or '.join(f'{a}x{b}' for a, b in nearest_node_grids(P, Q, p, q))}"
    )


def _division(whole: int, part: int) -> str:
    if part < 1:
        return f"{part} is less than 1"
    return f"{whole} / {part} leaves a remainder of {whole % part}"


def nearest_node_grids(P: int, Q: int, p: int, q: int) -> list[tuple[int, int]]:
    """Return the three node grids nearest to p x q that tile P x Q; those with p*q ranks per node come first."""
    tiling = [(a, b) for a in divisors(P) for b in divisors(Q)]
    return sorted(tiling, key=lambda ab: (ab[0] * ab[1] != p * q, abs(ab[0] - p) + abs(ab[1] - q), ab))[:3]


def node_grids(P: int, Q: int, ranks: int) -> list[tuple[int, int]]:
    """Return all node grids of `ranks` ranks that tile P x Q, ordered by their number of process rows."""
    return [(p, ranks // p) for p in divisors(P) if ranks % p == 0 and Q % (ranks // p) == 0]


def best_node_grid(P: int, Q: int, ranks: int, *, shares_cores: bool, panels: bool) -> tuple[int, int] | None:
    """Return the best part p x q of the process grid for a node with `ranks` ranks.

    Return None if one node has all ranks, or if no part of this size tiles the grid. A node sends
    2N²(p/P + q/Q) bytes (Lu et al. 2022, eq. 4), and the best part has the fewest. If the ranks factor panels, of two
    parts with equal bytes the one with more process rows is better, because more messages of a panel then stay on
    the node. If the ranks of a process row share cores to factor panels, few process rows leave more cores to each
    panel (Chalmers et al. 2023, III-B), and the best part has the fewest rows.
    """
    parts = node_grids(P, Q, ranks) if ranks < P * Q else []
    if not parts:
        return None
    if shares_cores:
        return min(parts)
    return min(parts, key=lambda part: (part[0] * Q + part[1] * P, -part[0] if panels else part[0]))


def divisors(n: int) -> list[int]:
    """Return all divisors of n in ascending order."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def _map_row(ranks: Sequence[int], node: Sequence[int], width: int) -> str:
    text = f"  {ranks[0]:>{width}}"
    for q in range(1, len(ranks)):
        text += f" {' ' if node[q] == node[q - 1] else '|'} {ranks[q]:>{width}}"
    return text


def _rule(above: Sequence[int], below: Sequence[int], width: int) -> str:
    cells = [("-" if a != b else " ") * width for a, b in zip(above, below)]
    return "  " + "   ".join(cells)
