"""Reference kernels of generated matrices: entry by entry, as `layout.entries` defines them."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.reference.rounding import Array, quiet
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries


def generated(
    shape: tuple[int, int], rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None
) -> Array:
    """Return a rank's block of a generated matrix in fp64, computed entry by entry."""
    A = np.empty(shape)
    for il, jl in np.ndindex(shape):
        i, j = rows.to_global(il), cols.to_global(jl)
        A[il, jl] = diagonal[il] if i == j and diagonal is not None else entries.value(i, j)
    return A


class ReferenceGenerated:
    """Reference implementation of `GeneratedKernels`, entry by entry."""

    def generate(
        self, A: Array, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None = None
    ) -> None:
        A[:] = generated(A.shape, rows, cols, entries, diagonal)

    def generate_with_sums(
        self,
        A: Array,
        rows: BlockCyclic,
        cols: BlockCyclic,
        entries: Entries,
        diagonal: Array | None,
        sums: Array,
        W: Array,
    ) -> None:
        self.generate(A, rows, cols, entries, diagonal)
        with quiet():
            sums[:] = W @ A.T.astype(np.float64)

    def generated_matvec(
        self, y: Array, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None, x: Array
    ) -> None:
        with quiet():
            y[:] = generated((len(y), len(x)), rows, cols, entries, diagonal) @ x

    def generated_row_sums(
        self, sums: Array, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None
    ) -> None:
        sums[:] = np.abs(generated((len(sums), cols.local_size), rows, cols, entries, diagonal)).sum(axis=1)

    def signs(self, v: Array, cols: BlockCyclic, seed: int) -> None:
        for jl in range(len(v)):
            highest = lcg.state(seed, 1 + cols.to_global(jl)) >> 63
            v[jl] = -1.0 if highest else 1.0
