"""The norm kernels of `kernels.contract` on a torch device: Triton's where there are some, else torch's operations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from mxpeak.kernels.contract.norms import ExtendedParts, NormParts, Tile
from mxpeak.kernels.torch import norm_check, norm_plain, norm_slots
from mxpeak.kernels.torch.device import Device
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import Band

Tensor = Any


class TorchNorms:
    """Norms of tensors that lie on one device; all vectors lie there, too."""

    def __init__(self, device: Device):
        self._device = device

    def here(self, x: Tensor) -> Tensor:
        """A tensor on this device."""
        return x.to(self._device.where)

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        """See `kernels.contract`."""
        new = self._device.zeros
        top, squares, by_row, by_column = new(1), new(3), *self._sums(new, wants, rows, columns)
        run = norm_slots.norm_pass if self._device.triton else norm_plain.norm_pass
        run(tiles, band, wants, top, squares, by_row, by_column)
        return NormParts(float(top) if "max" in wants else 0.0, squares, by_row, by_column)

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """See `kernels.contract`."""
        by_row, by_column = self._sums(self._device.zeros, wants, rows, columns)
        run = norm_slots.row_column_max if self._device.triton else norm_plain.row_column_max
        run(tiles, band, wants, by_row, by_column)
        return by_row, by_column

    def folded_sums(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], squared: bool, sigmas: Sequence[float],
        row_factors: Tensor, column_factors: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See `kernels.contract`."""
        new = self._device.zeros
        by_row, by_column = (new(len(sigmas), len(factors)) for factors in (row_factors, column_factors))
        run = norm_slots.folded_sums if self._device.triton else norm_plain.folded_sums
        run(tiles, band, wants, squared, sigmas, row_factors, column_factors, by_row, by_column)
        return by_row, by_column

    def read_all(self, tiles: Sequence[Tile]) -> None:
        """See `kernels.contract`."""
        if self._device.triton:
            norm_slots.read_all(tiles)
        else:
            for tile in tiles:
                tile.A.sum()

    def half_powers(self, maxima: Tensor) -> Tensor:
        """See `kernels.contract`."""
        usable = maxima.isfinite() & (maxima > 0)
        fraction, e = torch.frexp(torch.where(usable, maxima, 1.0))  # maximum = fraction·2^e, fraction in [1/2, 1)
        e = torch.where(fraction == 0.5, e - 1, e)
        half = torch.div(e + 1, 2, rounding_mode="floor")
        return torch.where(usable, torch.ldexp(torch.ones_like(maxima), -half), 1.0)

    def unfolded(self, folds: Tensor, factors: Tensor, maxima: Tensor, squared: bool) -> Tensor:
        """See `kernels.contract`."""
        total = torch.zeros_like(maxima)
        for fold in reversed(folds.unbind()):  # the finest first
            total = total + fold
        values = (norm_plain.root(total) if squared else total) / factors / factors
        return torch.where(maxima.isfinite() & (maxima > 0), values, maxima)

    def real_part(self, tile: Tile) -> Tile:
        """See `kernels.contract`."""
        return replace(tile, A=tile.A.real) if tile.A.is_complex() else tile

    def places(self, places: IndexMap) -> Tensor:
        """See `kernels.contract`."""
        return norm_plain.place_of(places, self._device.where)

    def spread(self, values: Tensor, places: Tensor, size: int) -> Tensor:
        """See `kernels.contract`."""
        full = self._device.zeros(*values.shape[:-1], size)
        full[..., places] = values
        return full

    def taken(self, values: Tensor, places: Tensor) -> Tensor:
        """See `kernels.contract`."""
        return values[places]

    def below(self, places: Tensor, end: int) -> Tensor:
        """See `kernels.contract`."""
        return (places < end).to(torch.float64)

    def meeting(self, by_row: Tensor, row_places: Tensor, by_column: Tensor, column_places: Tensor) -> Tensor:
        """See `kernels.contract`."""
        if not len(row_places) or not len(column_places):
            return by_row[:0]
        at = torch.searchsorted(column_places, row_places).clamp_max(len(column_places) - 1)  # both ascend
        met = column_places[at] == row_places
        return (by_row + by_column[at])[met]

    def larger(self, x: Tensor, y: Tensor) -> Tensor:
        """See `kernels.contract`."""
        return torch.maximum(x, y)

    def largest(self, x: Tensor) -> float:
        """See `kernels.contract`."""
        return float(x.max().clamp_min(0.0)) if len(x) else 0.0

    def vector_of(self, values: Sequence[float]) -> Tensor:
        """See `kernels.contract`."""
        return self._device.tensor(list(values), torch.float64)

    def floats(self, vector: Tensor) -> list[float]:
        """See `kernels.contract`."""
        return list(map(float, vector.tolist()))

    def hypot(self, x: Tensor, y: Tensor) -> Tensor:
        """See `kernels.contract`."""
        return norm_plain.modulus(x, y)

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Tensor:
        """See `kernels.contract`."""
        if order == "F":
            return self._device.empty(columns, rows, dtype=getattr(torch, dtype)).T
        return self._device.empty(rows, columns, dtype=getattr(torch, dtype))

    def put(self, target: Tensor, real: Tensor, imaginary: Tensor | None) -> None:
        """See `kernels.contract`."""
        if imaginary is None:
            target.copy_(real)
        else:
            target.real.copy_(real)
            target.imag.copy_(imaginary)

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        """See `kernels.contract`."""
        new = self._device.zeros
        top, squares, by_row, by_column = new(1), new(2, 1), new(2, rows), new(2, columns)
        count = new(1, dtype=torch.int64)
        norm_check.extended_pass(tiles, band, top, squares, by_row, by_column, count)
        return ExtendedParts(
            float(top), self.paired_sum([squares]), self.paired_sum([by_row]), self.paired_sum([by_column]), int(count)
        )

    def paired_sum(self, terms: Sequence[Tensor]) -> Tensor:
        """See `kernels.contract`."""
        return norm_check.paired_sum(terms)

    @staticmethod
    def _sums(new: Any, wants: Collection[str], rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Zeros for what is wanted."""
        return new(rows if "rows" in wants else 0), new(columns if "columns" in wants else 0)
