"""The host backend: `kernels.contract.Kernels` on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.kernels.host.dense.dense import HostDense
from mxpeak.kernels.host.dense.generated import HostGenerated
from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.matrix_engines import MatrixEngine, chosen
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.lu.lu import HostLu
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.kernels.host.sparse.sparse import HostSparse


class HostKernels(HostLu, HostGenerated):
    """The host kernels: tuned BLAS and compiled loops on `threads` cores.

    `poison` fills new arrays with NaN, for tests. `engines` lists the engines that multiply 16-bit operands; None
    selects the engines that are faster than fp32. Operands of all other low precisions are rounded and multiplied in
    fp32.
    """

    name = "host"
    dense = HostDense()

    def __init__(
        self,
        threads: int = 1,
        cores: Sequence[int] = (),
        *,
        alone: bool = False,
        poison: bool = False,
        engines: Sequence[MatrixEngine] | None = None,
    ):
        team = Team(threads, cores, alone=alone)
        super().__init__(team, poison, chosen() if engines is None else engines)
        self.norms = HostNorms(team)
        self._sparse: HostSparse | None = None

    @property
    def sparse(self) -> HostSparse:
        if self._sparse is None:
            self._sparse = HostSparse(self._team)
        return self._sparse

    def facts(self) -> dict[str, Any]:
        return {"kernels": self.name, "blas": blas.blas_facts(), "units": [engine.name for engine in self.engines]}
