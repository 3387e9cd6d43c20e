"""Norms of matrices whose tiles lie on several devices: each goes over its own, and the first sums up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from mxpeak.kernels.contract.norms import ExtendedParts, NormParts, Tile
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.norms import TorchNorms
from mxpeak.layout.structure import Band

Tensor = Any


class SeveralNorms(TorchNorms):
    """`TorchNorms` on the first of several devices; `key` tells on which one a tile lies."""

    def __init__(self, devices: Mapping[Any, Device], key: Callable[[Tensor], Hashable]):
        super().__init__(next(iter(devices.values())))
        self._norms = {name: TorchNorms(device) for name, device in devices.items()}
        self._key = key

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        """See `kernels.contract`."""
        parts = [norms.norm_pass(mine, band, wants, rows, columns) for norms, mine in self._shares(tiles)]
        return NormParts(
            self.largest(self.vector_of([part.top for part in parts])),
            self._total([part.squares for part in parts]),
            self._total([part.by_row for part in parts]),
            self._total([part.by_column for part in parts]),
        )

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """See `kernels.contract`."""
        parts = [norms.row_column_max(mine, band, wants, rows, columns) for norms, mine in self._shares(tiles)]
        by_row, by_column = (reduce(self.larger, map(self.here, same)) for same in zip(*parts))
        return by_row, by_column

    def folded_sums(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], squared: bool, sigmas: Sequence[float],
        row_factors: Tensor, column_factors: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See `kernels.contract`."""
        parts = [
            norms.folded_sums(
                mine, band, wants, squared, sigmas, norms.here(row_factors), norms.here(column_factors)
            )
            for norms, mine in self._shares(tiles)
        ]  # fmt: skip
        by_row, by_column = map(self._total, zip(*parts))
        return by_row, by_column

    def read_all(self, tiles: Sequence[Tile]) -> None:
        """See `kernels.contract`."""
        for norms, mine in self._shares(tiles):
            norms.read_all(mine)

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        """See `kernels.contract`."""
        parts = [norms.extended_pass(mine, band, rows, columns) for norms, mine in self._shares(tiles)]
        return ExtendedParts(
            max(part.top for part in parts),
            self.paired_sum([self.here(part.squares) for part in parts]),
            self.paired_sum([self.here(part.by_row) for part in parts]),
            self.paired_sum([self.here(part.by_column) for part in parts]),
            sum(part.entries for part in parts),
        )

    def _shares(self, tiles: Sequence[Tile]) -> list[tuple[TorchNorms, list[Tile]]]:
        """The tiles of each device, with its norms."""
        shares: dict[Hashable, list[Tile]] = {name: [] for name in self._norms}
        for tile in tiles:
            shares[self._key(tile.A)].append(tile)
        return [(self._norms[name], mine) for name, mine in shares.items()]

    def _total(self, vectors: Sequence[Tensor]) -> Tensor:
        """Their sum, here."""
        return torch.stack([*map(self.here, vectors)]).sum(dim=0)
