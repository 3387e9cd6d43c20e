"""What every backend provides for generated matrices, whose entries are functions of (seed, i, j)."""

from __future__ import annotations

from typing import Protocol

from mxpeak.kernels.contract.backend import Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries


class GeneratedKernels(Protocol):
    """Generated matrices: stored, or regenerated in every product.  All are local to the rank.

    a_ij = entries.value(i, j); where there is a `diagonal` (fp64, an entry a local row), a_ii is the one of row i.
    """

    def generate(
        self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector | None = None
    ) -> None:
        """A = this rank's part of a generated matrix, each entry rounded once to A's type."""

    def generate_with_sums(
        self,
        A: Matrix,
        rows: BlockCyclic,
        cols: BlockCyclic,
        entries: Entries,
        diagonal: Vector | None,
        sums: Matrix,
        W: Matrix,
    ) -> None:
        """A as `generate` makes it, and sums_k = A w_k as `add_matvec` would add them up; the host reads no A for it.

        W and the sums are fp64, with one of two vectors a row.
        """

    def generated_matvec(
        self, y: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector | None, x: Vector
    ) -> None:
        """y = A x in fp64, A as `generate` would make it, never stored; error <= n·u·|A||x|; 2·m·n flops."""

    def generated_row_sums(
        self, sums: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector | None
    ) -> None:
        """sums = Σ_j |a_ij|, A as `generate` would make it in fp64, never stored; error <= n·u·Σ_j |a_ij|."""

    def signs(self, v: Vector, cols: BlockCyclic, seed: int) -> None:
        """v_j = +1 or -1, by the highest bit of X(1 + j): a pure function of (seed, global j)."""
