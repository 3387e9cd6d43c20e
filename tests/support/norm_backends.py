"""Apply the norm kernels of every backend to arrays, and compute the expected values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from typing import Any

import numpy as np

from mxpeak.kernels.contract.norms import ExtendedParts, NormKernels, NormParts, Tile
from mxpeak.kernels.reference.norms import ReferenceNorms, magnitude
from mxpeak.layout.structure import WHOLE, Band
from mxpeak.solvers.norms import root
from tests.support.backends import Backend, backend_named
from tests.support.norm_tiles import FORWARD, LAYOUTS, TYPES, one_tile, random_values
from tests.support.roundoff import U

BOTH = ("rows", "columns")
WANTS = ("max", "squares", *BOTH)
SUBSETS = [set(subset) for size in range(5) for subset in combinations(WANTS, size)]
ORACLE = ReferenceNorms()
HOST, TORCH = ("host", "host with 3 threads"), ("torch", "torch with Triton")


@dataclass(frozen=True)
class Norms:
    """Call a backend's norm kernels on arrays: copy tiles with their strides to its device, and copy results back."""

    name: str
    kernels: NormKernels
    backend: Backend

    @property
    def layouts(self) -> list[str]:
        """The memory layouts of its matrices."""
        return FORWARD if self.backend.on_torch else list(LAYOUTS)

    def some(
        self, cases: Iterable[Any], turn: int = 0, *, host: int = 1, threads: int = 3, torch: int = 11, triton: int = 29
    ) -> list[Any]:
        """Select one combination of several, with a new first one at each call; by default all on one host thread.

        Strides are primes, so that every part of a combination is selected at some call.
        """
        strides = {"host": host, "host with 3 threads": threads, "torch": torch, "torch with Triton": triton}
        stride = strides.get(self.name, 1)
        return list(cases)[turn % stride :: stride]

    def there(self, tiles: Sequence[Tile]) -> list[Tile]:
        return [replace(tile, A=self.backend.array(tile.A)) for tile in tiles]

    def here(self, *results: Any) -> list[Any]:
        return [self.backend.numpy(result) for result in results]

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        with np.errstate(all="ignore"):  # Triton's interpreter computes with NumPy, which warns
            parts = self.kernels.norm_pass(self.there(tiles), band, wants, rows, columns)
        return NormParts(parts.top, *self.here(parts.squares, parts.by_row, parts.by_column))

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> list[Any]:
        with np.errstate(all="ignore"):
            return self.here(*self.kernels.row_column_max(self.there(tiles), band, wants, rows, columns))

    def folded_sums(
        self, tiles: Sequence[Tile], band: Band, wants: Any, squared: bool, constants: Any, *factors: Any
    ) -> list[Any]:
        there = map(self.backend.array, factors)
        with np.errstate(all="ignore"):
            return self.here(*self.kernels.folded_sums(self.there(tiles), band, wants, squared, constants, *there))

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        found = self.kernels.extended_pass(self.there(tiles), band, rows, columns)
        return ExtendedParts(found.top, *self.here(found.squares, found.by_row, found.by_column), found.entries)

    def apply(self, operation: str, *arguments: Any) -> Any:
        """Apply an operation on vectors."""
        there = [self.backend.array(x) if isinstance(x, np.ndarray) else x for x in arguments]
        return self.backend.numpy(getattr(self.kernels, operation)(*there))


def norms_of(name: str) -> Norms:
    backend = backend_named(name)
    return Norms(name, backend.kernels.norms, backend)


# --- comparisons ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Case:
    """Tiles and the reference's results, which are computed once because they do not depend on memory layouts."""

    tiles: Sequence[Tile]
    band: Band
    rows: int
    columns: int

    @cached_property
    def parts(self) -> NormParts:
        return ORACLE.norm_pass(self.tiles, self.band, WANTS, self.rows, self.columns)

    @cached_property
    def maxima(self) -> tuple[Any, Any]:
        return ORACLE.row_column_max(self.tiles, self.band, BOTH, self.rows, self.columns)

    def laid(self, layout: str) -> Case:
        """Return the same case in another memory layout."""
        case = Case([replace(t, A=LAYOUTS[layout](t.A)) for t in self.tiles], self.band, self.rows, self.columns)
        vars(case).update({"parts": self.parts, "maxima": self.maxima})
        return case

    @property
    def dtype(self) -> Any:
        return self.tiles[0].A.dtype if self.tiles else np.dtype(np.float64)


def case_of(values: Any, band: Band = WHOLE, layout: str = "by rows") -> Case:
    return Case([one_tile(values, band, layout)], band, *values.shape)


@cache
def random_case(name: str, shape: tuple[int, int], band: Band = WHOLE, scale: float = 1.0) -> Case:
    """Return a random matrix of one tile, which is the same for every backend."""
    rng = np.random.default_rng([*shape, *map(ord, name)])
    return case_of(random_values(rng, shape, TYPES[name], scale), band)


def agree(actual: Any, exact: Any, tiles: Sequence[Tile], *, terms: int) -> None:
    """Check sums of this many terms by the contract's bound with b = 512; NaN and Inf must be in the same places.

    |x| of a complex x has three more roundings. For complex128, entries whose squares underflow may be ignored next to
    entries of ordinary size. They are at most 2^450·2^-538 of these, so the error is 2^-70 of the largest per term. If
    all entries are denormal, |x| is a multiple of the smallest number.
    """
    actual, exact = np.asarray(actual), np.asarray(exact)
    assert actual.shape == exact.shape
    assert actual.dtype == exact.dtype == np.float64
    relative = (512 + terms / 512 + 4) * U
    floor = 0.0
    if tiles and tiles[0].A.dtype == np.complex128:
        known = [magnitude(tile.A) for tile in tiles]
        largest = max((float(x[np.isfinite(x)].max(initial=0.0)) for x in known), default=0.0)
        floor = terms * (largest * 2.0**-70 + 2.0**-1074)
    with np.errstate(all="ignore"):
        same = (actual == exact) | (np.isnan(actual) & np.isnan(exact))
        near = np.abs(actual - exact) <= relative * exact + floor
    assert (same | near).all(), (actual[~(same | near)], exact[~(same | near)])


def check_pass(norms: Norms, case: Case, wants: Collection[str] = WANTS) -> None:
    """Check that a pass for some results gives those of a pass for all results, and no others."""
    tiles, exact = case.tiles, case.parts
    parts = norms.norm_pass(tiles, case.band, wants, case.rows, case.columns)
    size = sum(tile.A.size for tile in tiles)
    if "max" not in wants:
        assert parts.top == 0.0
    elif case.dtype.kind != "c":
        np.testing.assert_equal(parts.top, exact.top)
    else:
        agree(parts.top, exact.top, tiles, terms=1)
    assert len(parts.squares) == 3
    if "squares" in wants:
        agree(root(*parts.squares.tolist()), root(*exact.squares.tolist()), tiles, terms=size)
    else:
        assert not np.any(parts.squares)
    for want, mine, right in (("rows", parts.by_row, exact.by_row), ("columns", parts.by_column, exact.by_column)):
        agree(mine, right if want in wants else np.zeros(0), tiles, terms=max(case.rows, case.columns))


def check_maxima(norms: Norms, case: Case, wants: Collection[str] = BOTH) -> None:
    """Check that a pass gives only the requested maxima."""
    found = norms.row_column_max(case.tiles, case.band, wants, case.rows, case.columns)
    for want, own, right in zip(BOTH, found, case.maxima):
        expected = right if want in wants else np.zeros(0)
        if case.dtype.kind == "c":
            agree(own, expected, case.tiles if case.dtype == np.complex128 else [], terms=1)
        else:
            np.testing.assert_array_equal(own, expected)


def check(norms: Norms, case: Case, turn: int = 0) -> None:
    """Check a full pass, a partial pass and the maxima: all three on the host, alternately two of them on torch."""
    check_pass(norms, case)
    if turn % 3 or not norms.backend.on_torch:
        check_pass(norms, case, SUBSETS[turn % len(SUBSETS)])
    if turn % 3 == 0 or not norms.backend.on_torch:
        check_maxima(norms, case, (BOTH, ("rows",), BOTH, ("columns",), BOTH, ())[turn % 6])
