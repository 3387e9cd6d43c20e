"""What every backend provides for generated matrices, whose entries are functions of (seed, i, j)."""

from __future__ import annotations

from typing import Protocol

from mxpeak.kernels.contract.backend import Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries


class GeneratedKernels(Protocol):
    """Generated matrices: stored, or made anew for every product.  All are local to the rank."""

    def generate(self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector) -> None:
        """A = this rank's part of a generated matrix, rounded once to A's type: a_ij = entries.value(i, j).

        Where `diagonal` (fp64, an entry a local row) is not empty, a_ii is the one of row i instead.
        """

    def generated_matvec(
        self, y: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector, x: Vector
    ) -> None:
        """y = A x in fp64, A as `generate` would make it, never stored; error <= n·u·|A||x|; 2·m·n flops."""

    def generated_row_sums(
        self, sums: Vector, squares: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector
    ) -> None:
        """sums = Σ_j |a_ij| and squares = Σ_j a_ij², A as `generate` would make it in fp64, never stored."""

    def signs(self, v: Vector, cols: BlockCyclic, seed: int) -> None:
        """v_j = +1 or -1, by the highest bit of X(1 + j): a pure function of (seed, global j)."""
