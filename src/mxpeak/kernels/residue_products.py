"""Use mxpeak's emulated fp64 products in place of the products of a library, and count their blocks."""

from __future__ import annotations

from collections.abc import Callable

from mxpeak.kernels.contract import Matrix
from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.kernels.contract.lu import Fp64Emulation


class ResidueProducts:
    """Products C -= A B by `subtract_emulated_product` of a backend, and the counts of their blocks."""

    scheme = "Ozaki II of mxpeak"

    def __init__(self, product: Callable[[Matrix, Matrix, Matrix], Emulation]):
        self._product, self._counts = product, Emulation()

    def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
        """Compute C -= A B in place, and count the blocks."""
        self._counts += self._product(C, A, B)

    def record(self) -> Fp64Emulation:
        """Return a record of the blocks. The bits differ for each row, so they are not recorded."""
        counts, self._counts = self._counts, Emulation()
        return Fp64Emulation(self.scheme, None, counts.emulated + counts.native, counts.native)
