"""norm, norms, column_norms and row_norms: from what was asked to what computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from operator import index
from typing import Any, NamedTuple

import numpy as np

from mxpeak.distributed.matrix import DistMatrix
from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix, cyclic, whole
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.norms import NormKernels, Tile
from mxpeak.kernels.host.norm_tiles import SMALL, small_norm
from mxpeak.kernels.host.norm_tiles import Norms as HostNorms
from mxpeak.kernels.host.team import Team
from mxpeak.layout.structure import ENDLESS, WHOLE, Band, Structure
from mxpeak.layout.structure import structure as structure_of
from mxpeak.library.inputs import is_tensor
from mxpeak.library.norms.arrays import two_dimensional
from mxpeak.library.norms.devices import OnDevice, on_host, placed
from mxpeak.library.norms.ranks import on_all
from mxpeak.perf.host import one_core_each
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.exact_norms import reproducible_norms, vector_norms
from mxpeak.solvers.norms import KINDS, NEEDS

Matrix = TileMatrix | CyclicMatrix
#: Other names of the kinds.
ALIASES: dict[Any, str] = {1: "one", np.inf: "inf", "infinity": "inf", "frobenius": "fro", "1": "one"}


class Norms(NamedTuple):
    """The four norms of a matrix."""

    max: float
    one: float
    inf: float
    fro: float


def norm(
    A: Any, kind: Any = "fro", *, structure: str = "general", uplo: str | None = None, diag: str | None = None,
    kl: int | None = None, ku: int | None = None, deterministic: bool = False, threads: int | None = None,
    device: str = "auto",
) -> float:  # fmt: skip
    """One norm of A: `max` |a_ij|, `one` = max_j Σ_i |a_ij|, `inf` = max_i Σ_j |a_ij|, or `fro` = sqrt(Σ |a_ij|²).

    `structure` says which entries are read: general, trapezoid, triangular (`uplo` lower or upper, `diag` nonunit or
    unit), symmetric, hermitian (`uplo`), band (`kl`, `ku`), hermitian-band, hessenberg.  What lies outside is never
    read.  NaN wins over Inf, and Inf over numbers; no intermediate result over- or underflows.  A vector is a column.

    `deterministic`: the same bits for the same matrix on any grid, in any storage, with any number of threads; about
    two to four times the cost.  Collective over the ranks of a distributed A.

    A may be an array or a tensor of torch.  `device`: auto (where A lies), cpu, cuda or cuda:N (A is copied there if it
    lies on the CPU).  `threads` are those of the CPU.
    """
    if type(A) is not np.ndarray and is_tensor(A) and device in ("auto", "cpu"):
        A = on_host(A)
    if type(A) is np.ndarray and A.nbytes <= SMALL and structure == "general" and not deterministic:
        name = _kind(kind)
        if (
            (uplo, diag, kl, ku, threads) == (None,) * 5
            and device in ("auto", "cpu")
            and (found := small_norm(A, NEEDS[name][0])) is not None
        ):
            return found
    asked = _Asked(A, (kind,), structure, uplo, diag, kl, ku, deterministic, threads, device)
    return next(iter(asked.norms().values()))


def norms(
    A: Any, *, structure: str = "general", uplo: str | None = None, diag: str | None = None, kl: int | None = None,
    ku: int | None = None, deterministic: bool = False, threads: int | None = None, device: str = "auto",
) -> Norms:  # fmt: skip
    """All four norms of A in one pass over memory; see `norm`."""
    return Norms(**_Asked(A, KINDS, structure, uplo, diag, kl, ku, deterministic, threads, device).norms())


def column_norms(
    A: Any, kind: Any = "fro", *, structure: str = "general", uplo: str | None = None, diag: str | None = None,
    kl: int | None = None, ku: int | None = None, threads: int | None = None, device: str = "auto",
) -> Any:  # fmt: skip
    """The norm of every column of A, each taken as a vector: its `max` (or `inf`), its sum `one`, or its length `fro`.

    In float64, one entry a column, on every rank; the same bits on any grid.  An array, or of tensors a tensor where A
    lies.  For the rest see `norm`.
    """
    return _Asked(A, (kind,), structure, uplo, diag, kl, ku, True, threads, device).vector_norms("columns")


def row_norms(
    A: Any, kind: Any = "fro", *, structure: str = "general", uplo: str | None = None, diag: str | None = None,
    kl: int | None = None, ku: int | None = None, threads: int | None = None, device: str = "auto",
) -> Any:  # fmt: skip
    """The norm of every row of A; see `column_norms`."""
    return _Asked(A, (kind,), structure, uplo, diag, kl, ku, True, threads, device).vector_norms("rows")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of a norm, as they were given."""

    A: Any
    kinds: Sequence[Any]
    structure: str
    uplo: str | None
    diag: str | None
    kl: int | None
    ku: int | None
    deterministic: bool
    threads: int | None
    device: str

    def norms(self) -> dict[str, float]:
        """Each kind of norm, by its name.  Collective over A's ranks."""
        S, kinds, at = self._settled("norm")
        with np.errstate(all="ignore"):  # what overflows is Inf, and says so
            return (reproducible_norms if self.deterministic else four_stages.norms)(at.matrix, S, kinds, at.kernels)

    def vector_norms(self, by: str) -> Any:
        """The norm of every row or column.  Collective over A's ranks."""
        S, (kind,), at = self._settled(by)
        with np.errstate(all="ignore"):
            return at.given_back(vector_norms(at.matrix, S, kind, by, at.kernels))

    def _settled(self, what: str) -> tuple[Structure, list[str], OnDevice]:
        """Structure, kinds, and matrix and kernels on their device, on all ranks alike."""
        A = self.A
        if not isinstance(A, TileMatrix | CyclicMatrix | DistMatrix):
            return self._checked()
        everybody = A.grid.all if isinstance(A, DistMatrix) else A.everybody
        found = on_all(self._checked, everybody, self._essence(what))
        _check_tiles(found[2].matrix, found[0])
        return found  # type: ignore[no-any-return]

    def _essence(self, what: str) -> Callable[[Any], Any]:
        """What must be the same on all ranks."""
        options = {name: getattr(self, name) for name in ("uplo", "diag", "kl", "ku", "deterministic")}
        given = ", ".join(f"{name}={value}" for name, value in options.items() if value)
        return lambda made: f"{what} {'/'.join(made[1])} of {made[0].m}x{made[0].n} {made[0].name} {given}".strip()

    def _checked(self) -> tuple[Structure, list[str], OnDevice]:
        M = _as_matrix(self.A)
        kl, ku = (None if w is None else _width(w, name) for w, name in ((self.kl, "kl"), (self.ku, "ku")))
        S = structure_of(self.structure, *M.shape, uplo=self.uplo, diag=self.diag, kl=kl, ku=ku)
        if isinstance(M, TileMatrix):
            S = _as_stored(S, M.stored)
        threads = _threads(self.threads, M.everybody.size)
        return S, list(map(_kind, self.kinds)), placed(M, self.device, lambda: _team(threads))


def _as_matrix(A: Any) -> Matrix:
    if isinstance(A, TileMatrix | CyclicMatrix):
        return A
    return cyclic(A) if isinstance(A, DistMatrix) else whole(two_dimensional(A))


def _width(value: Any, name: str) -> int:
    """A number of diagonals, none of them beyond any matrix."""
    try:
        return min(index(value), ENDLESS)
    except TypeError:
        raise UsageError(f"{name} = {value!r} is no whole number") from None


def _as_stored(S: Structure, stored: Band) -> Structure:
    """The structure where only a band is stored: what lies outside is 0, unless it mirrors what is not stored."""
    band = Band(min(S.band.below, stored.below), min(S.band.above, stored.above))
    lost = max(band.below, band.above) <= 0 < max(S.band.below, S.band.above)
    if S.mirrored and lost and max(stored.below, stored.above) > 0:
        side = ("upper", "lower") if S.band.above > 0 else ("lower", "upper")
        raise UsageError(
            f"uplo = '{side[0]}' asks for a triangle that is not stored: the band has kl = {stored.below} and "
            f"ku = {stored.above}; say uplo='{side[1]}'"
        )
    return replace(S, band=band)


def _check_tiles(M: Matrix, S: Structure) -> None:
    """Stop where tiles that the structure reads are missing.  Collective."""
    if not isinstance(M, TileMatrix) or M.stored != WHOLE:
        return
    band = Band(max(S.band.below, 0), max(S.band.above, 0)) if S.mirrored else S.band
    held = np.array([float(sum(_entries(tile, band) for tile in M.tiles))])
    M.everybody.allreduce(held, "sum")
    needed = band.entries(S.m, S.n)
    if held[0] != needed:
        raise UsageError(
            f"the tiles hold {held[0]:.0f} of the {needed} entries that structure {S.name!r} reads: give every tile of "
            f"them, or say which structure, uplo or band is stored"
        )


def _entries(tile: Tile, band: Band) -> int:
    """How many entries of a band lie in a tile."""
    shift = tile.rows.first - tile.cols.first
    return Band(band.below - shift, band.above + shift).entries(*tile.A.shape)


def _kind(kind: Any) -> str:
    name = ALIASES.get(kind, kind) if isinstance(kind, str | Real) and not isinstance(kind, bool) else kind
    if not isinstance(name, str) or name not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; choose one of {', '.join(KINDS)} (or 1, inf as NumPy has)")
    return name


def _threads(asked: Any, ranks: int) -> int:
    """As many threads as asked for; else OMP_NUM_THREADS; else one a core, but one where several ranks share them."""
    if asked is not None:
        if not isinstance(asked, Integral) or asked < 1:
            raise UsageError(f"threads = {asked!r}: give a whole number, at least one thread computes")
        return int(asked)
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return 1 if ranks > 1 else _cores()


@cache
def _cores() -> int:
    return len(one_core_each())


@cache
def _team(threads: int) -> NormKernels:
    return HostNorms(Team(threads))
