"""Compute the sums of norms in double-double arithmetic with torch operations, as the reference of the norm check.

A number is an unevaluated sum of two fp64 numbers, high + low. Sums and products of two fp64 numbers are split exactly
into the rounded result and the rounding error (Knuth; Dekker 1971; Ogita, Rump and Oishi 2005):

    s = x + y,  t = s - x,  rest = (x - (s - t)) + (y - t)               x + y = s + rest
    p = x·x,    x = h + l (26 bits each),  rest = ((h·h - p) + 2·h·l) + l·l       x·x = p + rest

Sums are computed by repeated halving. Each operation is a separate launch, so nothing is contracted to FMAs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mxpeak.kernels.contract.norms import ExtendedParts, Tile
from mxpeak.kernels.torch.norms.plain import Pair, Strip, strips
from mxpeak.layout.structure import Band

#: Factor that splits an fp64 number into halves of 26 bits.
HALVES = 2.0**27 + 1.0
#: Entries of a strip; about ten fp64 numbers per entry are kept.
STRIP = 2**22


def extended_pass(tiles: Sequence[Tile], band: Band, parts: ExtendedParts) -> None:
    """Add the entries in the band to the high and low sums of `parts`, update its maximum, and count the entries."""
    for strip in strips(tiles, band, STRIP):
        x, q = _expanded(strip)
        torch.maximum(parts.top, x[0].max(), out=parts.top)
        count = x[0].numel() if strip.inside is None else strip.inside.sum()
        torch.add(parts.entries, count, out=parts.entries)
        _add_to(parts.by_row[:, strip.rows], _along(x, 1))
        _add_to(parts.by_column[:, strip.columns], _along(x, 0))
        _add_to(parts.squares, _along((q[0].reshape(-1, 1), q[1].reshape(-1, 1)), 0))


def paired_sum(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of all rows of the matrices as high and low; high is the correctly rounded sum."""
    rows = torch.cat([*terms])
    high, low = _along((rows, torch.zeros_like(rows)), 0)
    total = high + low
    return torch.stack([total, low - (total - high)])


def _expanded(strip: Strip) -> tuple[Pair, Pair]:
    """Return |x| and |x|² for the entries x of a strip, as pairs of high and low."""
    if strip.im is not None:
        return _modulus(strip.re, strip.im)
    x = strip.re.abs()
    return (x, torch.zeros_like(x)), _squared(x)


def _modulus(re: torch.Tensor, im: torch.Tensor) -> tuple[Pair, Pair]:
    """Return |z| and |z|² for z = re + i·im, as pairs of high and low.

    |z| is the root of |z|² with one Newton correction.
    """
    s, rest = _sum(_squared(re), _squared(im))
    root = s.sqrt()
    again, again_rest = _squared(root)
    correction = (((s - again) - again_rest) + rest) / (root + root).clamp_min(2.0**-1000)
    x = root + correction
    return (x, correction - (x - root)), (s, rest)


def _squared(x: torch.Tensor) -> Pair:
    """Return x·x exactly, as the rounded product p and its error."""
    p, c = x * x, HALVES * x
    h = c - (c - x)
    l = x - h
    return p, ((h * h - p) + 2.0 * h * l) + l * l


def _sum(x: Pair, y: Pair) -> Pair:
    """Return the sum of two pairs as a pair of high and low."""
    s = x[0] + y[0]
    t = s - x[0]
    return s, ((x[0] - (s - t)) + (y[0] - t)) + (x[1] + y[1])


def _along(x: Pair, dim: int) -> Pair:
    """Return the sum of a pair along a dimension, as high and low."""
    high, low = x
    while (size := high.shape[dim]) > 1:
        half = size // 2
        left, right = ((high.narrow(dim, k, half), low.narrow(dim, k, half)) for k in (0, half))
        odd = tuple(part.narrow(dim, 2 * half, size - 2 * half) for part in (high, low))
        high, low = (torch.cat([part, rest], dim) for part, rest in zip(_sum(left, right), odd))
    return high.sum(dim), low.sum(dim)  # at most one term


def _add_to(sums: torch.Tensor, x: Pair) -> None:
    """Add the pair x to the high and low rows of `sums`."""
    high, low = _sum((sums[0], sums[1]), x)
    sums[0], sums[1] = high, low
