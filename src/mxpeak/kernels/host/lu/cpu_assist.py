"""Load and compile the host's kernels for operations that a device leaves to the CPU, only if they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from mxpeak.kernels.contract.lu import Exchange, Panel, PanelOutcome
from mxpeak.kernels.host.engine import blas

if TYPE_CHECKING:
    from mxpeak.kernels.host.engine.team import Team
    from mxpeak.kernels.host.lu.panel import HostPanels
    from mxpeak.kernels.host.sparse.sparse import HostSparse


class HostPanelService:
    """Kernels on `threads` host cores that factor panels for a device and compute with rows of a user's sparse matrix.

    panels    whether several ranks will share panels; the panel kernels are then loaded before any clock starts
    """

    def __init__(self, threads: int, cores: Sequence[int] = (), *, alone: bool = False, panels: bool = False):
        self.threads = threads
        self._cores, self._alone = cores, alone
        blas.set_threads(1)  # the team's threads call BLAS, and a second thread pool would compete for the cores
        self._panels: HostPanels | None = self._load_panels() if panels else None

    @cached_property
    def _team(self) -> Team:
        from mxpeak.kernels.host.engine.team import Team

        return Team(self.threads, self._cores, alone=self._alone)

    @cached_property
    def sparse(self) -> HostSparse:
        """Return the sparse kernels of the host, which share this object's threads."""
        from mxpeak.kernels.host.sparse.sparse import HostSparse

        return HostSparse(self._team)

    def factor_panel(self, work: Panel, exchange: Exchange | None) -> PanelOutcome:
        """Factor a panel in place by `HostPanels.factor_panel`. The first call loads the panel kernels."""
        if self._panels is None:
            self._panels = self._load_panels()
        return self._panels.factor_panel(work, exchange)

    def _load_panels(self) -> HostPanels:
        """Import and compile the panel kernels, and return them on this object's threads."""
        from mxpeak.kernels.host.lu.panel import HostPanels

        return HostPanels(self._team)
