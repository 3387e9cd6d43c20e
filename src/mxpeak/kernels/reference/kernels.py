"""The reference backend: `kernels.contract.Kernels`, each operation written as its definition."""

from __future__ import annotations

from typing import Any

from mxpeak.kernels.reference.dense import ReferenceDense
from mxpeak.kernels.reference.generated import ReferenceGenerated
from mxpeak.kernels.reference.lu import ReferenceLu
from mxpeak.kernels.reference.norms import ReferenceNorms
from mxpeak.kernels.reference.sparse import ReferenceSparse


class ReferenceKernels(ReferenceLu, ReferenceGenerated):
    """Reference implementation of all kernels: slow, but easy to verify by reading. New arrays are filled with NaN."""

    name = "reference"
    threads = 1
    dense = ReferenceDense()
    norms = ReferenceNorms()
    sparse = ReferenceSparse()

    def facts(self) -> dict[str, Any]:
        return {"kernels": self.name, "blas": None}
