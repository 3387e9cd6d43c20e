"""Compute norms of matrices whose tiles are on several devices; the first device combines the results.

All devices start before the host waits for the first result.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any

import torch

from mxpeak.kernels.contract.norms import ExtendedParts, NormParts, Tile
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.layout.structure import Band

Tensor = Any


class SeveralNorms(TorchNorms):
    """Norms on several devices, with all vectors on the first one."""

    def __init__(self, devices: Sequence[Device]):
        super().__init__(devices[0])
        self._norms = [TorchNorms(device) for device in devices]

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        parts = [norms.begin_pass(share, band, wants, rows, columns) for norms, share in self._shares(tiles)]
        tops, *sums = zip(*parts)
        return NormParts(self._largest(tops) if "max" in wants else 0.0, *map(self._total, sums))

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        parts = [norms.row_column_max(share, band, wants, rows, columns) for norms, share in self._shares(tiles)]
        by_row, by_column = (reduce(torch.maximum, self._gathered(same)) for same in zip(*parts))
        return by_row, by_column

    def folded_sums(
        self,
        tiles: Sequence[Tile],
        band: Band,
        wants: Collection[str],
        squared: bool,
        sigmas: Sequence[float],
        row_factors: Tensor,
        column_factors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for norms, share in self._shares(tiles):
            factors = [f.to(norms.device.where) for f in (row_factors, column_factors)]
            parts.append(norms.folded_sums(share, band, wants, squared, sigmas, *factors))
        by_row, by_column = map(self._total, zip(*parts))
        return by_row, by_column

    def read_all(self, tiles: Sequence[Tile]) -> None:
        for norms, share in self._shares(tiles):
            norms.read_all(share)

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        parts = [norms.begin_extended(share, band, rows, columns) for norms, share in self._shares(tiles)]
        tops, counts, *sums = zip(*parts)
        squares, by_row, by_column = (self.paired_sum(self._gathered(same)) for same in sums)
        return ExtendedParts(self._largest(tops), squares, by_row, by_column, int(self._total(counts)))

    def _shares(self, tiles: Sequence[Tile]) -> list[tuple[TorchNorms, list[Tile]]]:
        """Group the tiles by device, and return each group with the norm kernels of its device."""
        return [(norms, [tile for tile in tiles if norms.device.has(tile.A)]) for norms in self._norms]

    def _gathered(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Copy the vectors to the first device."""
        return [vector.to(self.device.where) for vector in vectors]

    def _largest(self, tops: Sequence[Tensor]) -> float:
        """Return the maximum of the devices' maxima, or NaN if any of them is NaN."""
        return float(torch.cat(self._gathered(tops)).max())

    def _total(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the sum of the vectors on the first device."""
        return torch.stack(self._gathered(vectors)).sum(dim=0)
