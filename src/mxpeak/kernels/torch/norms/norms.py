"""Compute norms of tensors with Triton kernels, or with torch operations on devices without Triton."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    """Norms of tensors on one device, with all vectors on the same device."""

    def __init__(self, device: Device):
        self.device = device
        self.xp = Namespace(device.where)
        self._passes = slots if device.triton else plain

    @property
    def transport(self) -> Any:
        return tensor_transport(self.device)

    def small_norm(self, A: Tensor, want: str) -> None:
        return None  # every norm needs a full pass

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        top, *sums = self.begin_pass(tiles, band, wants, rows, columns)
        return NormParts(float(top) if "max" in wants else 0.0, *sums)

    def begin_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Start a norm pass, and return maximum, squares and sums without waiting for their values."""
        new = self.device.zeros
        parts = new(1), new(3), *self._sums(wants, rows, columns)
        self._passes.norm_pass(tiles, band, wants, *parts)
        return parts

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        by_row, by_column = self._sums(wants, rows, columns)
        self._passes.row_column_max(tiles, band, wants, by_row, by_column)
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
        by_row, by_column = (self.device.zeros(len(sigmas), len(f)) for f in (row_factors, column_factors))
        self._passes.folded_sums(tiles, band, wants, squared, sigmas, row_factors, column_factors, by_row, by_column)
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
        self._passes.read_all(tiles)

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
        top, count, squares, by_row, by_column = self.begin_extended(tiles, band, rows, columns)
        return ExtendedParts(float(top), squares, by_row, by_column, int(count))

    def begin_extended(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> tuple[Tensor, ...]:
        """Start an extended pass and return maximum, count, squares and sums without waiting for their values."""
        new = self.device.zeros
        top, squares, by_row, by_column = new(1), new(2, 1), new(2, rows), new(2, columns)
        count = new(1, dtype=torch.int64)
        check.extended_pass(tiles, band, top, squares, by_row, by_column, count)
        return top, count, *(self.paired_sum([sums]) for sums in (squares, by_row, by_column))

    def paired_sum(self, terms: Sequence[Tensor]) -> Tensor:
        return check.paired_sum(terms)

    def _sums(self, wants: Collection[str], rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return zeros for the sums by row and by column; a vector is empty if its sums are not wanted."""
        return self.device.zeros(rows if "rows" in wants else 0), self.device.zeros(
            columns if "columns" in wants else 0
        )
