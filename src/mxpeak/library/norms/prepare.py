"""Validate the arguments of a norm function, and convert a user's matrix to tiles for the kernels of its device."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral, Real
from operator import index
from typing import Any, NamedTuple

import numpy as np

from mxpeak.comm.collectives import validate_on_all
from mxpeak.configs.norms import KIND_NAMES, KINDS
from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix, cyclic, whole
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import device_norms, host_norms
from mxpeak.kernels.contract.norms import NormKernels, Tile
from mxpeak.layout.structure import ENDLESS, WHOLE, Band, Structure
from mxpeak.layout.structure import structure as structure_of
from mxpeak.library.communicators import BlockDistributed
from mxpeak.library.frameworks import framework_of
from mxpeak.library.inputs import TYPES, Input, as_array, as_tensor, device_for, device_of, is_tensor, opened, read
from mxpeak.perf.host import one_core_each

Matrix = TileMatrix | CyclicMatrix

#: The standard names of norms by their aliases, including the numbers that NumPy uses.
NAMES: dict[Any, str] = {**KIND_NAMES, 1: "one", math.inf: "inf"}


class NormOptions(NamedTuple):
    """The options of a norm function, as the user passed them."""

    structure: str
    uplo: str | None
    diag: str | None
    kl: int | None
    ku: int | None
    deterministic: bool
    threads: int | None
    device: str


class Prepared(NamedTuple):
    """A validated matrix with its structure, norms and kernels. `restore` converts a vector to the user's type."""

    matrix: Matrix
    structure: Structure
    kinds: list[str]
    kernels: NormKernels
    restore: Callable[[Any], Any]


def prepare(A: Any, kinds: Sequence[Any], function: str, options: NormOptions) -> Prepared:
    """Validate the arguments of a norm function on all ranks of A, and convert A to tiles. Collective over A's ranks.

    `function` is the name that errors use. A matrix is copied only if its entries are integers, or if it is not on the
    device of the kernels.
    """
    if isinstance(A, BlockDistributed):
        A = A.blocks()

    def on_this_rank() -> Prepared:
        M, devices, tensors = _tiles_of(A)
        kl, ku = (None if w is None else _width(w, name) for w, name in ((options.kl, "kl"), (options.ku, "ku")))
        S = structure_of(options.structure, *M.shape, uplo=options.uplo, diag=options.diag, kl=kl, ku=ku)
        if isinstance(M, TileMatrix):
            S = _in_stored_band(S, M.stored)
        threads, names = _threads(options.threads, M.comm.size), list(map(kind_name, kinds))
        matrix, kernels = _on_device(M, devices, tensors, options.device, threads)
        return Prepared(matrix, S, names, kernels, _restoring(A, tensors))

    def call_text(call: Prepared) -> str:
        named = ((name, getattr(options, name)) for name in ("uplo", "diag", "kl", "ku", "deterministic"))
        given = ", ".join(f"{name}={value}" for name, value in named if value)
        S = call.structure
        return f"{function} {'/'.join(call.kinds)} of {S.m}x{S.n} {S.name} {given}".strip()

    if not isinstance(A, TileMatrix | CyclicMatrix | DistMatrix):
        return on_this_rank()
    ranks = A.grid.all if isinstance(A, DistMatrix) else A.comm
    call = validate_on_all(ranks, on_this_rank, call_text)
    _check_tiles(call.matrix, call.structure)
    return call


def _restoring(A: Any, tensors: bool) -> Callable[[Any], Any]:
    """Return the function that converts a vector of norms to the format of A."""
    native = as_tensor if tensors else as_array
    framework = framework_of(A)
    return native if framework is None else lambda x: framework.array_of(native(x))


def kind_name(kind: Any) -> str:
    """Return the standard name of a kind of norm; raise a UsageError if the kind is unknown."""
    name = NAMES.get(kind, kind) if isinstance(kind, str | Real) and not isinstance(kind, bool) else kind
    if not isinstance(name, str) or name not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; use one of {', '.join(KINDS)} (or 1 and inf, as in NumPy)")
    return name


def dense(values: Any, name: str) -> Input:
    """Wrap an array or a tensor as an `Input` whose type and alignment the kernels support.

    Convert it only if necessary. Conjugation does not change absolute values, so the kernels read the memory of a
    conjugate view directly.
    """
    given = read(values, name, instead="scipy.sparse.linalg.norm")
    supported, array = given.dtype.name in TYPES, given.array
    dtype = given.dtype if supported else np.dtype(np.float64)
    if given.is_tensor:
        array = array.resolve_neg() if supported else array.double()
        array = array.conj() if array.is_conj() else array
    elif not (supported and array.dtype.isnative and array.flags.aligned):
        array = given.on(None, dtype)
    return replace(given, array=array, dtype=dtype)


def integers(values: Sequence[Any], name: str) -> list[int]:
    """Return the values as Python integers; raise a UsageError if a value is not an integer."""
    try:
        return [index(value) for value in values]
    except TypeError:
        raise UsageError(f"{name} = {values!r} is not valid; use integers") from None


def sizes(values: Sequence[Any], name: str) -> list[int]:
    """Return the values as Python integers; raise a UsageError if a value is negative or not an integer."""
    numbers = integers(values, name)
    if any(value < 0 for value in numbers):
        raise UsageError(f"{name} = {values!r} contains a negative size; use sizes of 0 or more")
    return numbers


def _tiles_of(A: Any) -> tuple[Matrix, Sequence[str], bool]:
    """Return a user's matrix as tiles, the names of the devices of the tiles, and whether any tile is a tensor."""
    if isinstance(A, DistMatrix):
        A = cyclic(A)
    if isinstance(A, TileMatrix | CyclicMatrix):
        arrays = [tile.A for tile in A.tiles]
        return A, tuple(dict.fromkeys(str(device_of(x)) for x in arrays)), any(map(is_tensor, arrays))
    values = A if isinstance(A, Input) else dense(A, "A")
    if len(values.shape) not in (1, 2):
        raise UsageError(f"A has {len(values.shape)} dimensions, but a norm needs one or two; use a matrix or a vector")
    array = values.array if len(values.shape) == 2 else values.array[:, None]
    return whole(array), (values.device or "cpu",), values.is_tensor


def _on_device(
    M: Matrix, devices: Sequence[str], tensors: bool, device: str, threads: int
) -> tuple[Matrix, NormKernels]:
    """Move the tiles to `device` if necessary, and return the matrix and the kernels of the device.

    The host kernels read CPU tensors as arrays without a copy.
    """
    if device == "auto" and len(devices) > 1:  # compute each tile on its own device, and vectors on a GPU
        names = sorted(devices, key=lambda name: name == "cpu")
        kernels = device_norms([device_for(device, name) or opened(name) for name in names])
        M = M.mapped(as_tensor)
    elif (target := device_for(device, *devices)) is None:
        return M.mapped(as_array) if tensors else M, host_norms(threads)
    else:
        kernels = device_norms([target])
        M = M.mapped(lambda A: as_tensor(A).to(target.where))
    return M if M.comm.size == 1 else M.with_transport(kernels.transport), kernels


def _width(value: Any, name: str) -> int:
    """Return a bandwidth as an integer of at most ENDLESS; raise a UsageError if it is not an integer."""
    try:
        return min(index(value), ENDLESS)
    except TypeError:
        raise UsageError(f"{name} = {value!r} is not an integer; use an integer") from None


def _in_stored_band(S: Structure, stored: Band) -> Structure:
    """Return the structure without the entries outside of the stored band, which are zero.

    Raises a UsageError if `uplo` selects a triangle that is not stored.
    """
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
    """Raise a UsageError if tiles that the structure reads are missing. Collective."""
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
    """Return the number of entries of a tile that are within a band."""
    shift = tile.rows.first - tile.cols.first
    return Band(band.below - shift, band.above + shift).entries(*tile.A.shape)


def _threads(threads: Any, ranks: int) -> int:
    """Return the number of threads: the argument, OMP_NUM_THREADS, or a default.

    The default is one thread per core, or one thread if there are several ranks.
    """
    if threads is not None:
        if not isinstance(threads, Integral) or threads < 1:
            raise UsageError(f"threads = {threads!r} is not valid; use an integer of at least 1")
        return int(threads)
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return 1 if ranks > 1 else cores()


@cache
def cores() -> int:
    """Return the number of physical cores that this process may use."""
    return len(one_core_each())
