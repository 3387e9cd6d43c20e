"""Create matrices for the norm kernels, with NaN in entries that must not be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, product
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.index_map import IndexMap, consecutive
from mxpeak.layout.structure import DIAGONAL, ENDLESS, WHOLE, Band

TYPES = {
    **{name: np.dtype(name) for name in ("float64", "float32", "complex128", "complex64", "float16")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
BANDS = {
    "whole": WHOLE,
    "lower": Band(ENDLESS, 0),
    "strict lower": Band(ENDLESS, -1),
    "upper": Band(0, ENDLESS),
    "strict upper": Band(-1, ENDLESS),
    "hessenberg": Band(1, ENDLESS),
    "narrow": Band(2, 3),
    "without the diagonal": Band(-2, 5),
    "diagonal": DIAGONAL,
    "empty": Band(0, -1),
}


def random_values(rng: Any, shape: tuple[int, int], dtype: Any, scale: float = 1.0) -> Any:
    """Return normally distributed numbers times a scale, in both parts for complex types."""
    with np.errstate(over="ignore", under="ignore"):
        x = rng.standard_normal(shape) * scale
        return (x + 1j * scale * rng.standard_normal(shape)).astype(dtype) if dtype.kind == "c" else x.astype(dtype)


def magnitudes_of(dtype: Any) -> dict[str, Any]:
    """Return scales near the largest number, near the smallest, and with squares outside the range of fp64."""
    info = ml_dtypes.finfo(dtype)
    largest, least = float(info.max), float(info.smallest_subnormal)
    magnitudes = {"large": largest / 64, "small": float(info.tiny) * 8, "denormal": least * 32}
    if dtype in (np.float64, np.complex128):
        magnitudes |= {"1e150": 1e150, "1e-140": 1e-140, "1e-155": 1e-155, "1e-200": 1e-200}
    return magnitudes


def not_numbers(dtype: Any) -> list[Any]:
    """Return NaN and Inf of both signs, and all combinations of them as complex numbers."""
    real = [np.nan, -np.nan, np.inf, -np.inf]
    if dtype.kind != "c":
        return real
    return real + [complex(re, im) for re, im in product((1.0, np.nan, np.inf, -np.inf), repeat=2) if re != im]


def cut(values: Any, rows: int, columns: int, down: slice, right: slice, order: str) -> Any:
    """Return the values as a part of a larger array of NaN."""
    m, n = values.shape
    larger = np.full((rows * m + 5, columns * n + 5), np.nan, values.dtype, order=order)  # type: ignore[call-overload]
    piece = larger[down, right][:m, :n]
    piece[:] = values
    return piece


#: Memory layouts of a matrix.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "by rows": lambda x: np.array(x, order="C"),
    "by columns": lambda x: np.array(x, order="F"),
    "by padded rows": lambda x: cut(x, 1, 1, slice(2, None), slice(3, None), "C"),
    "by padded columns": lambda x: cut(x, 1, 1, slice(2, None), slice(3, None), "F"),
    "strided": lambda x: cut(x, 2, 3, slice(1, None, 2), slice(2, None, 3), "C"),
    "backwards": lambda x: cut(x, 1, 1, slice(None, None, -1), slice(None, None, -1), "C"),
    "backwards, strided, by columns": lambda x: cut(x, 3, 2, slice(None, None, -3), slice(None, None, -2), "F"),
}
#: Memory layouts of tensors, which have no negative strides.
FORWARD = [name for name in LAYOUTS if "backwards" not in name]


def poisoned(values: Any, rows: IndexMap, cols: IndexMap, band: Band) -> Any:
    """Return the values with NaN outside the band."""
    offset = cols.to_global(np.arange(cols.size))[None, :] - rows.to_global(np.arange(rows.size))[:, None]
    return np.where((offset >= -band.below) & (offset <= band.above), values, values.dtype.type(np.nan))


def one_tile(values: Any, band: Band = WHOLE, layout: str = "by rows") -> Tile:
    """Return a matrix as one tile."""
    rows, cols = consecutive(values.shape[0]), consecutive(values.shape[1])
    return Tile(LAYOUTS[layout](poisoned(values, rows, cols, band)), rows, cols, 0, 0)


def ragged_tiles(
    rng: Any, values: Any, band: Band, heights: Sequence[int], widths: Sequence[int], layouts: Collection[str]
) -> list[Tile]:
    """Return a matrix in tiles in random order, each in its own memory layout."""
    m, n = values.shape
    A = poisoned(values, consecutive(m), consecutive(n), band)
    downs, rights = [0, *accumulate(heights)], [0, *accumulate(widths)]
    assert (downs[-1], rights[-1]) == (m, n)
    tiles = []
    for (i, h), (j, w) in product(zip(downs, heights), zip(rights, widths)):
        piece = LAYOUTS[rng.choice(list(layouts))](A[i : i + h, j : j + w])
        tiles.append(Tile(piece, consecutive(h, i), consecutive(w, j), i, j))
    return [tiles[k] for k in rng.permutation(len(tiles))]
