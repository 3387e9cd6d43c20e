"""Reference kernels of HPL and HPL-MxP: each operation written as its definition."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.kernels.contract.lu import (
    HAS_TOP,
    HEAD,
    ROW,
    VALUE,
    BlockSolver,
    Exchange,
    Panel,
    PanelOutcome,
    PanelSolve,
    by_substitution,
)
from mxpeak.kernels.reference import emulation
from mxpeak.kernels.reference.rounding import TYPES, Array, quiet, rounded
from mxpeak.kernels.synchronous import Synchronous
from mxpeak.layout.block_cyclic import BlockCyclic


def global_indices(A: Array, rows: BlockCyclic, cols: BlockCyclic) -> tuple[Array, Array]:
    """Return the global indices of a local matrix's entries, i as a column vector and j as a row vector."""
    i = np.array([rows.to_global(il) for il in range(A.shape[0])], dtype=np.int64)
    j = np.array([cols.to_global(jl) for jl in range(A.shape[1])], dtype=np.int64)
    return i[:, None], j[None, :]


class ReferenceLu(Synchronous):
    """Reference implementation of `LuKernels`. New arrays are filled with NaN."""

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Array:
        return np.full((rows, columns), np.nan, dtype=TYPES[precision])

    def buffer(self, size: int, precision: str = "fp64") -> Array:
        return np.full(size, np.nan, dtype=TYPES[precision])

    def emulates(self, precision: str) -> bool:
        return precision not in TYPES

    def cuts_show(self, precision: str) -> bool:
        return True

    def panel(self, buffer: Array, rows: int, columns: int) -> Array:
        return buffer[: rows * columns].reshape((rows, columns), order="F")

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        return rows * columns

    def copy(self, source: Array, target: Array) -> None:
        target[:] = source

    def cast(self, source: Array, target: Array, precision: str) -> None:
        with quiet():
            target[:] = rounded(source.astype(np.float64), precision)

    def factor_panel(self, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
        """Factor the panel in place, column by column and right-looking, and return the measured times.

        The plan and the variant are ignored, because they change only rounding.
        """
        A, L1, jb = panel.A, panel.L1, panel.L1.shape[0]
        begin, swap_s, singular = perf_counter(), 0.0, 0
        for j in range(jb):
            first = j if panel.top else 0
            candidate, body = np.zeros(HEAD + 2 * jb), HEAD + jb
            candidate[VALUE], candidate[ROW] = -1.0, -1.0
            if first < A.shape[0]:
                magnitude = np.abs(A[first:, j])
                at = first + int(np.argmax(np.where(np.isnan(magnitude), -1.0, magnitude)))
                candidate[VALUE] = 0.0 if np.isnan(A[at, j]) else abs(A[at, j])
                candidate[ROW] = panel.rows.to_global(panel.il0 + at)
                candidate[HEAD:body] = A[at]
            if panel.top:
                candidate[HAS_TOP] = 1.0
                candidate[body:] = A[j]
            if exchange is not None:
                swap_begin = perf_counter()
                exchange(candidate, np.empty_like(candidate))
                swap_s += perf_counter() - swap_begin
            pivot = int(candidate[ROW])
            panel.pivots[j] = pivot
            L1[j] = candidate[HEAD:body]
            if panel.rows.owner(pivot) == panel.rows.p:
                A[panel.rows.to_local(pivot) - panel.il0] = candidate[body:]
            below = slice(j + 1 if panel.top else 0, None)
            if L1[j, j] == 0.0:
                singular = singular or j + 1
            else:
                A[below, j] /= L1[j, j]
            A[below, j + 1 :] -= np.outer(A[below, j], L1[j, j + 1 :])
        panel.pivots[jb] = singular
        return PanelOutcome(perf_counter() - begin - swap_s, swap_s)

    def permute_rows(self, A: Array, block: int, sources: Array, targets: Array, block_rows: Array) -> None:
        before = A.copy()
        A[block : block + len(sources)] = before[sources]
        A[targets] = before[block + block_rows]

    def gather_rows(self, A: Array, rows: Array, out: Array) -> None:
        out[:] = A[rows]

    def scatter_rows(self, source: Array, rows: Array, A: Array) -> None:
        A[rows] = source

    def factor_block(self, D: Array, singular: Array) -> None:
        singular[0] = 0
        with quiet():
            for j in range(D.shape[0]):
                if D[j, j] == 0.0:
                    singular[0] = singular[0] or j + 1
                else:
                    D[j + 1 :, j] /= D[j, j]
                D[j + 1 :, j + 1 :] -= np.outer(D[j + 1 :, j], D[j, j + 1 :])

    def solve_unit_lower(self, L: Array, B: Array, precision: str) -> PanelSolve:
        with quiet():
            for i in range(B.shape[0]):
                B[i] -= L[i, :i] @ B[:i]
        return by_substitution(B)

    def solve_right_upper(self, B: Array, U: Array, precision: str) -> PanelSolve:
        with quiet():
            for j in range(B.shape[1]):
                B[:, j] = (B[:, j] - B[:, :j] @ U[:j, j]) / U[j, j]
        return by_substitution(B)

    def subtract_product(self, C: Array, A: Array, B: Array) -> None:
        if self.emulation is not None and C.dtype == np.float64:
            self.emulation.subtract_product(C, A, B)
            return
        with quiet():
            C -= A @ B

    def subtract_emulated_product(self, C: Array, A: Array, B: Array) -> Emulation:
        return emulation.subtract_emulated_product(C, A, B)

    def solve_upper(self, U: Array, x: Array) -> None:
        with quiet():
            for i in reversed(range(len(x))):
                x[i] = (x[i] - U[i, i + 1 :] @ x[i + 1 :]) / U[i, i]

    def block_solver(self, T: Array, part: str) -> BlockSolver:
        triangle = np.triu(T) if part == "upper" else np.tril(T, -1) + np.eye(len(T))

        def solve(x: Array, *, transposed: bool = False) -> None:
            op = triangle.astype(np.float64).T if transposed else triangle.astype(np.float64)
            forwards = (part == "lower") != transposed
            with quiet():
                for i in range(len(x)) if forwards else reversed(range(len(x))):
                    others = slice(0, i) if forwards else slice(i + 1, None)
                    x[i] = (x[i] - op[i, others] @ x[others]) / op[i, i]

        return solve

    def add_matvec(self, y: Array, A: Array, x: Array, *, transposed: bool = False) -> None:
        with quiet():
            y += (A.T if transposed else A) @ x

    def add_two_matvecs(self, y: Array, z: Array, A: Array, u: Array, v: Array) -> None:
        self.add_matvec(y, A, u)
        self.add_matvec(z, A, v)

    def add_operand_sums(self, sums: Array, A: Array, precision: str, vectors: Array, part: str = "all") -> None:
        m, n = A.shape
        if part == "upper":
            self.add_operand_sums(sums[3:], np.triu(A[:, :m]), precision, vectors[:, :m])
            A, vectors = A[:, m:], vectors[:, m:]
        elif part == "lower":
            A = np.tril(A, n - m - 1)
        low = np.empty_like(A)
        self.cast(A, low, precision)
        with quiet():
            squares = A.astype(np.float64) ** 2
        u, w, q = vectors[[0, 2, 3]] if len(vectors) > 1 else (vectors[0], vectors[0], np.ones(A.shape[1]))
        low[:, u == 0] = 0
        for total, M, x in ((0, low, u), (1, A, w), (2, squares, q)):
            self.add_matvec(sums[total], M, x)
        if len(vectors) > 1:
            self.add_matvec(sums[0], A, vectors[1])

    def add_triangle_matvec(
        self, y: Array, A: Array, x: Array, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        i, j = global_indices(A, rows, cols)
        inside = {"lower": j < i, "upper": j >= i}[part]
        with quiet():
            for il in range(A.shape[0]):
                t = A[il, inside[il]].astype(np.float64)
                y[il] += {"plain": t, "absolute": np.abs(t), "squared": t * t}[form] @ x[inside[il]]

    def max_abs_upper(self, A: Array, rows: BlockCyclic, cols: BlockCyclic) -> float:
        i, j = global_indices(A, rows, cols)
        return float(np.abs(A[j >= i]).max(initial=0.0))

    def row_max(self, A: Array, by_row: Array) -> None:
        by_row[:] = np.abs(A).max(axis=1, initial=0.0)

    def column_max(self, A: Array, by_column: Array) -> None:
        by_column[:] = np.abs(A).max(axis=0, initial=0.0)

    def reciprocal_powers(self, powers: Array, x: Array) -> None:
        fraction, k = np.frexp(x)  # x = fraction·2^k, fraction in [1/2, 1)
        with quiet():
            power = np.ldexp(1.0, -np.where(fraction == 0.5, k - 1, k))
        powers[:] = np.where((x == 0) | ~np.isfinite(x), 1.0, power)

    def scale_rows_columns(self, A: Array, by_row: Array, by_column: Array) -> None:
        with quiet():
            A[:] = by_row[:, None] * A * by_column

    def combine_rows(self, X: Array, Y: Array, r: Array, s: Array) -> None:
        self.combine_columns(X.T, Y.T, r, s)

    def combine_columns(self, X: Array, Y: Array, r: Array, s: Array) -> None:
        x, y = X.astype(np.float64), Y.astype(np.float64)
        with quiet():
            X[:], Y[:] = (x + y) * r, (x - y) * s

    def add_scaled(self, y: Array, factor: float, x: Array) -> None:
        with quiet():
            y += factor * x

    def sum_squares(self, x: Array) -> float:
        with quiet():
            return float((x * x).sum())

    def abs_sums(self, A: Array, by_row: Array, by_column: Array) -> None:
        by_row[:] = np.abs(A).sum(axis=1)
        by_column[:] = np.abs(A).sum(axis=0)
