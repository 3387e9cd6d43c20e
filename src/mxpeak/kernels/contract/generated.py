"""The operations of every backend on generated matrices, whose entries are functions of (seed, i, j)."""

from __future__ import annotations

from typing import Protocol

from mxpeak.kernels.contract.backend import Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries


class GeneratedKernels(Protocol):
    """Rank-local operations on generated matrices, which are stored or generated for every product.

    a_ij = entries.value(i, j); if `diagonal` (fp64, one entry per local row) is given, it provides a_ii.
    """

    def generate(
        self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector | None = None
    ) -> None:
        """Write this rank's block of a generated matrix to A, with each entry rounded once to the type of A."""

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
        """Generate A as `generate` does, and compute sums_k = A w_k, where w_k is row k of W.

        On the host, the sums are computed during the generation, so A is not read again. W and the sums are fp64, with
        one or two vectors as rows.
        """

    def generated_matvec(
        self, y: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector | None, x: Vector
    ) -> None:
        """Compute y = A x in fp64 for the matrix A that `generate` writes, without storing A.

        The error is at most n·u·|A||x|, and the operation takes 2·m·n flops.
        """

    def generated_row_sums(
        self, sums: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector | None
    ) -> None:
        """Compute sums_i = Σ_j |a_ij| in fp64 for the matrix A that `generate` writes, without storing A.

        The error is at most n·u·Σ_j |a_ij|.
        """

    def signs(self, v: Vector, cols: BlockCyclic, seed: int) -> None:
        """Set v_j to +1 or -1 according to the highest bit of the generator state X(1 + global j)."""
