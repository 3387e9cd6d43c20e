"""The reference backend: `kernels.contract.Kernels`, each operation written as its definition says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from mxpeak.kernels.contract import Exchange, Panel, PanelOutcome
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic

Array = np.ndarray[Any, np.dtype[Any]]


class ReferenceKernels:
    """Definitions, not algorithms: slow, and easy to check by eye.  New arrays are filled with NaN."""

    name = "reference"
    threads = 1

    def matrix(self, rows: int, columns: int) -> Array:
        return np.full((rows, columns), np.nan)

    def vector(self, size: int) -> Array:
        return np.full(size, np.nan)

    def zeros(self, size: int) -> Array:
        return np.zeros(size)

    def shaped(self, vector: Array, rows: int, columns: int) -> Array:
        return vector[: rows * columns].reshape((rows, columns))

    def panel(self, vector: Array, rows: int, columns: int) -> Array:
        return vector[: rows * columns].reshape((rows, columns), order="F")

    def panel_size(self, rows: int, columns: int) -> int:
        return rows * columns

    def indices(self, values: Sequence[int]) -> Array:
        return np.array(values, dtype=np.int64)

    def integers(self, vector: Array) -> list[int]:
        return [int(value) for value in vector]

    def assign(self, target: Array, values: Sequence[float]) -> None:
        target[:] = values

    def floats(self, vector: Array) -> list[float]:
        return [float(value) for value in vector]

    def copy(self, source: Array, target: Array) -> None:
        target[:] = source

    def generate_lcg(self, A: Array, rows: BlockCyclic, cols: BlockCyclic, seed: int) -> None:
        for jl in range(A.shape[1]):
            for il in range(A.shape[0]):
                draw = 1 + rows.to_global(il) + cols.to_global(jl) * rows.n
                A[il, jl] = lcg.value(lcg.state(seed, draw))

    def factor_panel(self, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
        """Column by column, right-looking; plan and variant change rounding only, so the oracle ignores them."""
        A, L1, jb = panel.A, panel.L1, panel.L1.shape[0]
        begin, swap_s, singular = perf_counter(), 0.0, 0
        for j in range(jb):
            first = j if panel.top else 0
            mine = self.candidate(jb)
            mine[:2] = -1.0, -1.0
            if first < A.shape[0]:
                magnitude = np.abs(A[first:, j])
                at = first + int(np.argmax(np.where(np.isnan(magnitude), -1.0, magnitude)))
                mine[0] = 0.0 if np.isnan(A[at, j]) else abs(A[at, j])
                mine[1] = panel.rows.to_global(panel.il0 + at)
                mine[4 : 4 + jb] = A[at]
            if panel.top:
                mine[2] = 1.0
                mine[4 + jb :] = A[j]
            if exchange is not None:
                swap_begin = perf_counter()
                exchange(mine)
                swap_s += perf_counter() - swap_begin
            pivot = int(mine[1])
            panel.pivots[j] = pivot
            L1[j] = mine[4 : 4 + jb]
            if panel.rows.owner(pivot) == panel.rows.p:
                A[panel.rows.to_local(pivot) - panel.il0] = mine[4 + jb :]
            below = slice(j + 1 if panel.top else 0, None)
            if L1[j, j] == 0.0:
                singular = singular or j + 1
            else:
                A[below, j] /= L1[j, j]
            A[below, j + 1 :] -= np.outer(A[below, j], L1[j, j + 1 :])
        return PanelOutcome(singular, perf_counter() - begin - swap_s, swap_s)

    def candidate(self, jb: int) -> Array:
        return np.zeros(4 + 2 * jb)

    def better_candidate(self, mine: Array, theirs: Array) -> None:
        jb = (len(mine) - 4) // 2
        wins = theirs[0] > mine[0] or (theirs[0] == mine[0] and 0 <= theirs[1] < mine[1])
        if wins:
            mine[:2], mine[4 : 4 + jb] = theirs[:2], theirs[4 : 4 + jb]
        if theirs[2]:
            mine[2], mine[4 + jb :] = 1.0, theirs[4 + jb :]

    def permute_rows(self, A: Array, block: int, sources: Array, targets: Array, block_rows: Array) -> None:
        before = A.copy()
        A[block : block + len(sources)] = before[sources]
        A[targets] = before[block + block_rows]

    def gather_rows(self, A: Array, rows: Array, out: Array) -> None:
        out[:] = A[rows]

    def scatter_rows(self, source: Array, rows: Array, A: Array) -> None:
        A[rows] = source

    def solve_unit_lower(self, L: Array, B: Array) -> None:
        for i in range(B.shape[0]):
            B[i] -= L[i, :i] @ B[:i]

    def subtract_product(self, C: Array, A: Array, B: Array) -> None:
        C -= A @ B

    def solve_upper(self, U: Array, x: Array) -> None:
        for i in reversed(range(len(x))):
            x[i] = (x[i] - U[i, i + 1 :] @ x[i + 1 :]) / U[i, i]

    def add_matvec(self, y: Array, A: Array, x: Array) -> None:
        y += A @ x

    def subtract(self, y: Array, x: Array) -> None:
        y -= x

    def abs_sums(self, A: Array, by_row: Array, by_column: Array) -> None:
        by_row[:] = np.abs(A).sum(axis=1)
        by_column[:] = np.abs(A).sum(axis=0)

    def max_abs(self, x: Array) -> float:
        return float(np.max(np.abs(x))) if x.size else 0.0

    def sum_abs(self, x: Array) -> float:
        return float(np.abs(x).sum())

    def gemm_probe(self, m: int, n: int, k: int) -> Callable[[], None]:
        C, A, B = np.ones((m, n)), np.ones((m, k)), np.ones((k, n))
        return lambda: self.subtract_product(C, A, B)

    def facts(self) -> dict[str, Any]:
        return {"kernels": self.name, "blas": None}
