"""Check the arguments of norm, norms, column_norms and row_norms, the same on all ranks, and compute the norms."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral, Real
from operator import index
from typing import Any, NamedTuple

import numpy as np

from mxpeak.comm.collectives import validate_on_all
from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import host_norms
from mxpeak.kernels.contract.norms import NormKernels, Tile
from mxpeak.layout.structure import ENDLESS, WHOLE, Band, Structure
from mxpeak.layout.structure import structure as structure_of
from mxpeak.library.grids import BlockDistributed
from mxpeak.library.inputs import as_array, check_no_gradient, is_tensor
from mxpeak.library.norms.operands import Matrix, dense, operand
from mxpeak.perf.host import one_core_each
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.exact_norms import reproducible_norms, vector_norms
from mxpeak.solvers.norms import KINDS, NEEDS

#: Other names of the kinds.
ALIASES: dict[Any, str] = {1: "one", np.inf: "inf", "infinity": "inf", "frobenius": "fro", "1": "one"}


class Norms(NamedTuple):
    """A named tuple with four norms of a matrix.

    Attributes
    ----------
    max : float
        Largest absolute value of all entries.
    one : float
        Largest column sum of the absolute values.
    inf : float
        Largest row sum of the absolute values.
    fro : float
        Frobenius norm, the square root of the sum of the squared absolute values.
    """

    max: float
    one: float
    inf: float
    fro: float


def norm(
    A: Any,
    kind: Any = "fro",
    *,
    structure: str = "general",
    uplo: str | None = None,
    diag: str | None = None,
    kl: int | None = None,
    ku: int | None = None,
    deterministic: bool = False,
    threads: int | None = None,
    device: str = "auto",
) -> float:
    """Compute a norm of a matrix.

    If A contains NaN, the norm is also NaN. Intermediate results neither overflow nor underflow. If A is distributed,
    all ranks must call this function.

    Parameters
    ----------
    A : array_like, tensor, Matrix or DistributedMatrix
        Matrix in any memory order. A vector is treated as a single column. `norm` does not modify A, and it does not
        copy floating-point arrays.
    kind : {"fro", "max", "one", "inf"} or 1 or numpy.inf, default "fro"
        Norm to compute: Frobenius, maximum, one or infinity norm.
    structure : str, default "general"
        Structure of A: "general", "trapezoid", "triangular", "symmetric", "hermitian", "band", "hermitian-band" or
        "hessenberg". mxpeak reads only the entries that belong to this structure.
    uplo : {"lower", "upper"}, optional
        Triangle to read if A is triangular, symmetric or Hermitian.
    diag : {"nonunit", "unit"}, optional
        For a triangular matrix, "unit" treats all diagonal entries as one.
    kl, ku : int, optional
        Numbers of diagonals below and above the main diagonal of a band matrix.
    deterministic : bool, default False
        If True, the result is bitwise identical for any process grid, storage format and number of threads.
    threads : int, optional
        Number of CPU threads. By default, mxpeak uses one thread per core.
    device : str, default "auto"
        Use "auto" for the device of A, or specify a device such as "cpu", "cuda" or "cuda:0".

    Returns
    -------
    float
        Value of the norm, in fp64.

    Raises
    ------
    UsageError
        An argument is invalid.
    ResourceError
        The device does not exist, or there is not enough memory.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.norm([[3.0, -4.0], [0.0, 1.0]], "one")
    5.0
    """
    array = A
    if type(A) is not np.ndarray and is_tensor(A):
        A = dense(A, "A")
        array = as_array(A.array) if A.device == "cpu" else A
    if type(array) is np.ndarray and structure == "general" and not deterministic and device in ("auto", "cpu"):
        want = NEEDS[_kind(kind)][0]
        defaults = (uplo, diag, kl, ku, threads) == (None,) * 5
        if defaults and (found := host_norms(1).small_norm(array, want)) is not None:
            return found
    call = _Call(A, (kind,), structure, uplo, diag, kl, ku, deterministic, threads, device)
    return next(iter(call.norms().values()))


def norms(
    A: Any,
    *,
    structure: str = "general",
    uplo: str | None = None,
    diag: str | None = None,
    kl: int | None = None,
    ku: int | None = None,
    deterministic: bool = False,
    threads: int | None = None,
    device: str = "auto",
) -> Norms:
    """Compute the maximum, one, infinity and Frobenius norms in a single pass over memory.

    If A is distributed, all ranks must call this function.

    Parameters
    ----------
    A : array_like, tensor, Matrix or DistributedMatrix
        Matrix in any memory order. A vector is treated as a single column.
    structure : str, default "general"
        Structure of A: "general", "trapezoid", "triangular", "symmetric", "hermitian", "band", "hermitian-band" or
        "hessenberg". mxpeak reads only the entries that belong to this structure.
    uplo : {"lower", "upper"}, optional
        Triangle to read if A is triangular, symmetric or Hermitian.
    diag : {"nonunit", "unit"}, optional
        For a triangular matrix, "unit" treats all diagonal entries as one.
    kl, ku : int, optional
        Numbers of diagonals below and above the main diagonal of a band matrix.
    deterministic : bool, default False
        If True, the result is bitwise identical for any process grid, storage format and number of threads.
    threads : int, optional
        Number of CPU threads. By default, mxpeak uses one thread per core.
    device : str, default "auto"
        Use "auto" for the device of A, or specify a device such as "cpu", "cuda" or "cuda:0".

    Returns
    -------
    Norms
        Named tuple with the fields `max`, `one`, `inf` and `fro`.

    Raises
    ------
    UsageError
        An argument is invalid.
    ResourceError
        The device does not exist, or there is not enough memory.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.norms([[3.0, -4.0], [0.0, 1.0]]).inf
    7.0
    """
    return Norms(**_Call(A, KINDS, structure, uplo, diag, kl, ku, deterministic, threads, device).norms())


def column_norms(
    A: Any,
    kind: Any = "fro",
    *,
    structure: str = "general",
    uplo: str | None = None,
    diag: str | None = None,
    kl: int | None = None,
    ku: int | None = None,
    threads: int | None = None,
    device: str = "auto",
) -> Any:
    """Compute the norm of every column.

    The results are bitwise identical for any process grid. If A is distributed, all ranks must call this function, and
    each rank receives all norms.

    Parameters
    ----------
    A : array_like, tensor, Matrix or DistributedMatrix
        Matrix in any memory order. A vector is treated as a single column.
    kind : {"fro", "max", "one", "inf"}, default "fro"
        Norm to compute. "max" and "inf" give the largest absolute value, "one" gives the sum of the absolute values,
        and "fro" gives the Euclidean length.
    structure : str, default "general"
        Structure of A: "general", "trapezoid", "triangular", "symmetric", "hermitian", "band", "hermitian-band" or
        "hessenberg". mxpeak reads only the entries that belong to this structure.
    uplo : {"lower", "upper"}, optional
        Triangle to read if A is triangular, symmetric or Hermitian.
    diag : {"nonunit", "unit"}, optional
        For a triangular matrix, "unit" treats all diagonal entries as one.
    kl, ku : int, optional
        Numbers of diagonals below and above the main diagonal of a band matrix.
    threads : int, optional
        Number of CPU threads. By default, mxpeak uses one thread per core.
    device : str, default "auto"
        Use "auto" for the device of A, or specify a device such as "cpu", "cuda" or "cuda:0".

    Returns
    -------
    ndarray or tensor
        Norms of all columns, in fp64.

    Raises
    ------
    UsageError
        An argument is invalid.
    ResourceError
        The device does not exist, or there is not enough memory.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.column_norms([[3.0, -4.0], [4.0, 1.0]], "one")
    array([7., 5.])
    """
    return _Call(A, (kind,), structure, uplo, diag, kl, ku, True, threads, device).vector_norms("columns")


def row_norms(
    A: Any,
    kind: Any = "fro",
    *,
    structure: str = "general",
    uplo: str | None = None,
    diag: str | None = None,
    kl: int | None = None,
    ku: int | None = None,
    threads: int | None = None,
    device: str = "auto",
) -> Any:
    """Compute the norm of every row.

    The results are bitwise identical for any process grid. If A is distributed, all ranks must call this function, and
    each rank receives all norms.

    Parameters
    ----------
    A : array_like, tensor, Matrix or DistributedMatrix
        Matrix in any memory order. A vector is treated as a single column.
    kind : {"fro", "max", "one", "inf"}, default "fro"
        Norm to compute. "max" and "inf" give the largest absolute value, "one" gives the sum of the absolute values,
        and "fro" gives the Euclidean length.
    structure : str, default "general"
        Structure of A: "general", "trapezoid", "triangular", "symmetric", "hermitian", "band", "hermitian-band" or
        "hessenberg". mxpeak reads only the entries that belong to this structure.
    uplo : {"lower", "upper"}, optional
        Triangle to read if A is triangular, symmetric or Hermitian.
    diag : {"nonunit", "unit"}, optional
        For a triangular matrix, "unit" treats all diagonal entries as one.
    kl, ku : int, optional
        Numbers of diagonals below and above the main diagonal of a band matrix.
    threads : int, optional
        Number of CPU threads. By default, mxpeak uses one thread per core.
    device : str, default "auto"
        Use "auto" for the device of A, or specify a device such as "cpu", "cuda" or "cuda:0".

    Returns
    -------
    ndarray or tensor
        Norms of all rows, in fp64.

    Raises
    ------
    UsageError
        An argument is invalid.
    ResourceError
        The device does not exist, or there is not enough memory.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.row_norms([[3.0, -4.0], [4.0, 1.0]], "one")
    array([7., 5.])
    """
    return _Call(A, (kind,), structure, uplo, diag, kl, ku, True, threads, device).vector_norms("rows")


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call."""

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
        checked = self._checked("norm")
        with np.errstate(all="ignore"):  # what overflows is Inf, and says so
            compute = reproducible_norms if self.deterministic else four_stages.norms
            return compute(checked.matrix, checked.structure, checked.kinds, checked.kernels)

    def vector_norms(self, by: str) -> Any:
        """The norm of every row or column.  Collective over A's ranks."""
        if is_tensor(self.A):
            check_no_gradient(self.A, "A")
        checked = self._checked(by)
        (kind,) = checked.kinds
        with np.errstate(all="ignore"):
            return checked.result(vector_norms(checked.matrix, checked.structure, kind, by, checked.kernels))

    def _checked(self, what: str) -> _Checked:
        """The arguments as they are computed with, on all ranks alike."""
        A = self.A
        if isinstance(A, BlockDistributed):
            return replace(self, A=A.blocks())._checked(what)
        if not isinstance(A, TileMatrix | CyclicMatrix | DistMatrix):
            return self._checked_here()
        ranks = A.grid.all if isinstance(A, DistMatrix) else A.comm
        found = validate_on_all(ranks, self._checked_here, self._text(what))
        _check_tiles(found.matrix, found.structure)
        return found

    def _text(self, what: str) -> Callable[[_Checked], str]:
        """The call in words, which must be the same on all ranks."""
        values = {name: getattr(self, name) for name in ("uplo", "diag", "kl", "ku", "deterministic")}
        options = ", ".join(f"{name}={value}" for name, value in values.items() if value)

        def text(checked: _Checked) -> str:
            S = checked.structure
            return f"{what} {'/'.join(checked.kinds)} of {S.m}x{S.n} {S.name} {options}".strip()

        return text

    def _checked_here(self) -> _Checked:
        A = operand(self.A)
        M = A.matrix
        kl, ku = (None if w is None else _width(w, name) for w, name in ((self.kl, "kl"), (self.ku, "ku")))
        S = structure_of(self.structure, *M.shape, uplo=self.uplo, diag=self.diag, kl=kl, ku=ku)
        if isinstance(M, TileMatrix):
            S = _as_stored(S, M.stored)
        threads, kinds = _threads(self.threads, M.comm.size), list(map(_kind, self.kinds))
        return _Checked(S, kinds, *A.on(self.device, threads), A.result)


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a call computes: norms of a matrix of a structure by these kernels; `result` makes a vector the user's."""

    structure: Structure
    kinds: list[str]
    matrix: Matrix
    kernels: NormKernels
    result: Callable[[Any], Any]


def _width(value: Any, name: str) -> int:
    """A number of diagonals, none of them beyond any matrix."""
    try:
        return min(index(value), ENDLESS)
    except TypeError:
        raise UsageError(f"{name} = {value!r} is not an integer; use an integer") from None


def _as_stored(S: Structure, stored: Band) -> Structure:
    """The structure where only a band is stored: what lies outside is 0, unless it mirrors what is not stored."""
    band = Band(min(S.band.below, stored.below), min(S.band.above, stored.above))
    lost = max(band.below, band.above) <= 0 < max(S.band.below, S.band.above)
    if S.mirrored and lost and max(stored.below, stored.above) > 0:
        side = ("upper", "lower") if S.band.above > 0 else ("lower", "upper")
        raise UsageError(
            f"uplo = '{side[0]}' selects a triangle that is not stored: the band has kl = {stored.below} "
            f"and ku = {stored.above}; use uplo='{side[1]}'"
        )
    return replace(S, band=band)


def _check_tiles(M: Matrix, S: Structure) -> None:
    """Stop where tiles that the structure reads are missing.  Collective."""
    if not isinstance(M, TileMatrix) or M.stored != WHOLE:
        return
    band = Band(max(S.band.below, 0), max(S.band.above, 0)) if S.mirrored else S.band
    stored = np.array([float(sum(_entries(tile, band) for tile in M.tiles))])
    M.comm.allreduce(stored, "sum")
    needed = band.entries(S.m, S.n)
    if stored[0] != needed:
        raise UsageError(
            f"the tiles contain {stored[0]:.0f} of the {needed} entries that structure {S.name!r} reads; "
            "pass the missing tiles, or use a structure, uplo or band that needs only these tiles"
        )


def _entries(tile: Tile, band: Band) -> int:
    """How many entries of a band lie in a tile."""
    shift = tile.rows.first - tile.cols.first
    return Band(band.below - shift, band.above + shift).entries(*tile.A.shape)


def _kind(kind: Any) -> str:
    name = ALIASES.get(kind, kind) if isinstance(kind, str | Real) and not isinstance(kind, bool) else kind
    if not isinstance(name, str) or name not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; use one of {', '.join(KINDS)} (or 1 and inf, as in NumPy)")
    return name


def _threads(threads: Any, ranks: int) -> int:
    """The number of threads: the argument; else OMP_NUM_THREADS; else one a core, but one where ranks share cores."""
    if threads is not None:
        if not isinstance(threads, Integral) or threads < 1:
            raise UsageError(f"threads = {threads!r} is not valid; use an integer of at least 1")
        return int(threads)
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return 1 if ranks > 1 else _cores()


@cache
def _cores() -> int:
    return len(one_core_each())
