"""Compute norms of tensors with Triton kernels, or with torch operations on devices without Triton."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from typing import Any

import torch

from mxpeak.kernels.contract.norms import ExtendedParts, NormParts, Tile
from mxpeak.kernels.torch.engine.array_namespace import Namespace
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.messages import tensor_transport
from mxpeak.kernels.torch.norms import check, plain, slots
from mxpeak.layout.structure import Band

Tensor = Any


class TorchNorms:
    """Norms of matrices whose tiles are on one or several devices, with all vectors on the first device.

    All devices start to compute before the host waits for the first result.
    """

    def __init__(self, *devices: Device):
        self.device, self._devices = devices[0], devices
        self.xp = Namespace(self.device.where)

    @property
    def transport(self) -> Any:
        return tensor_transport(self.device)

    def small_norm(self, A: Tensor, want: str) -> None:
        return None  # every norm needs a full pass

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        of_devices = []
        for device, passes, share in self._shares(tiles):
            parts = NormParts(device.zeros(1), device.zeros(3), *_sums(device, wants, rows, columns))
            passes.norm_pass(share, band, wants, parts)
            of_devices.append((parts.top, parts.squares, parts.by_row, parts.by_column))
        tops, *sums = zip(*of_devices)
        return NormParts(self._largest(tops) if "max" in wants else 0.0, *map(self._total, sums))

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        of_devices = []
        for device, passes, share in self._shares(tiles):
            of_devices.append(_sums(device, wants, rows, columns))
            passes.row_column_max(share, band, wants, of_devices[-1])
        by_row, by_column = (reduce(torch.maximum, self._gathered(same)) for same in zip(*of_devices))
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
        of_devices = []
        for device, passes, share in self._shares(tiles):
            factors = tuple(f.to(device.where) for f in (row_factors, column_factors))
            of_devices.append(tuple(device.zeros(len(sigmas), len(f)) for f in factors))
            passes.folded_sums(share, band, wants, squared, sigmas, factors, of_devices[-1])
        by_row, by_column = map(self._total, zip(*of_devices))
        return by_row, by_column

    def half_powers(self, maxima: Tensor) -> Tensor:
        usable = maxima.isfinite() & (maxima > 0)
        fraction, e = torch.frexp(torch.where(usable, maxima, 1.0))  # maximum = fraction·2^e, fraction in [1/2, 1)
        e = torch.where(fraction == 0.5, e - 1, e)
        half = torch.div(e + 1, 2, rounding_mode="floor")
        return torch.where(usable, torch.ldexp(torch.ones_like(maxima), -half), 1.0)

    def unfolded(self, folds: Tensor, factors: Tensor, maxima: Tensor, squared: bool) -> Tensor:
        total = torch.zeros_like(maxima)
        for fold in reversed(folds.unbind()):  # the finest first
            total = total + fold
        values = (plain.root(total) if squared else total) / factors / factors
        return torch.where(maxima.isfinite() & (maxima > 0), values, maxima)

    def read_all(self, tiles: Sequence[Tile]) -> None:
        for _, passes, share in self._shares(tiles):
            passes.read_all(share)

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Tensor:
        if order == "F":
            return self.device.empty(columns, rows, dtype=getattr(torch, dtype)).T
        return self.device.empty(rows, columns, dtype=getattr(torch, dtype))

    def set_parts(self, target: Tensor, real: Tensor, imaginary: Tensor | None) -> None:
        if imaginary is None:
            target.copy_(real)
        else:
            target.real.copy_(real)
            target.imag.copy_(imaginary)

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        of_devices = []
        for device, _, share in self._shares(tiles):
            sums = device.zeros(2, 1), device.zeros(2, rows), device.zeros(2, columns)
            parts = ExtendedParts(device.zeros(1), *sums, device.zeros(1, dtype=torch.int64))
            check.extended_pass(share, band, parts)
            of_devices.append((parts.top, parts.entries, *(self.paired_sum([pair]) for pair in sums)))
        tops, counts, *pairs = zip(*of_devices)
        squares, by_row, by_column = (
            same[0] if len(same) == 1 else self.paired_sum(self._gathered(same)) for same in pairs
        )
        return ExtendedParts(self._largest(tops), squares, by_row, by_column, int(self._total(counts)))

    def paired_sum(self, terms: Sequence[Tensor]) -> Tensor:
        return check.paired_sum(terms)

    def _shares(self, tiles: Sequence[Tile]) -> Iterator[tuple[Device, Any, Sequence[Tile]]]:
        """Yield each device, the module with its norm kernels, and the tiles in its memory."""
        for device in self._devices:
            share = tiles if len(self._devices) == 1 else [tile for tile in tiles if device.has(tile.A)]
            yield device, slots if device.triton else plain, share

    def _gathered(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return the vectors on the first device, copied if they are on another device."""
        return [vector.to(self.device.where) for vector in vectors]

    def _largest(self, tops: Sequence[Tensor]) -> float:
        """Return the maximum of the devices' maxima, or NaN if any of them is NaN."""
        return float(tops[0] if len(tops) == 1 else torch.cat(self._gathered(tops)).max())

    def _total(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the elementwise sum of the devices' vectors, on the first device."""
        return vectors[0] if len(vectors) == 1 else torch.stack(self._gathered(vectors)).sum(dim=0)


def _sums(device: Device, wants: Collection[str], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return zero vectors for the sums by row and by column; a vector is empty if its sums are not wanted."""
    return device.zeros(rows if "rows" in wants else 0), device.zeros(columns if "columns" in wants else 0)
