"""Right-hand sides of distributed systems: the same on all ranks, a function of row indices, or each rank's rows."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from mxpeak.comm.collectives import validate_on_all
from mxpeak.errors import UsageError
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.inputs import right_hand_side
from mxpeak.library.dense.matrix_source import wide_type
from mxpeak.library.inputs import Input, check_finite, read
from mxpeak.library.types import Array


def right_hand_sides(A: DistributedMatrix, b: Any, *, local: bool) -> Array:
    """The whole of b, float64 or complex128, finite, on all ranks; `local`: each has given its rows.  Collective."""
    if callable(b):
        return validate_on_all(A.comm, lambda: _numbers(right_hand_side(b(np.arange(A.n)), A.n)), _said)
    if not local:
        return validate_on_all(A.comm, lambda: _whole(A, b), _said)
    mine = validate_on_all(A.comm, lambda: _rows(A, b), lambda made: f"b of {made.shape[1:] or 'one column'}")
    return np.concatenate(A.comm.bcast_object(A.comm.gather_objects(mine)))


def _whole(A: DistributedMatrix, b: Any) -> Array:
    """All rows of b."""
    given, mine = read(b, "b").shape, len(A.own_rows)
    if given and given[0] == mine != A.n:
        raise UsageError(
            f"A is {A.n}x{A.n}, but b has shape {given}; use all {A.n} rows on every rank, or local=True "
            f"with the {mine} rows of this rank"
        )
    return _numbers(right_hand_side(b, A.n))


def _rows(A: DistributedMatrix, b: Any) -> Array:
    """This rank's rows of b."""
    rows = A.own_rows
    one, m = read(b, "b"), rows.stop - rows.start
    if len(one.shape) not in (1, 2) or one.shape[0] != m:
        raise UsageError(
            f"this rank has rows {rows.start} to {rows.stop} of A, but b has shape {one.shape}; use shape "
            f"({m},) or ({m}, k) with local=True, or all {A.n} rows on every rank without it"
        )
    return _numbers(one)


def _numbers(b: Input) -> Array:
    """In float64 or complex128, all finite, not the user's own."""
    B = np.array(b.on(None, wide_type(b.dtype, "b")))
    check_finite(B, "b", np)
    return B


def _said(B: Array) -> str:
    """What must be the same on all ranks."""
    return f"b of {B.dtype}, shape {B.shape}, checksum {zlib.crc32(B.tobytes()):08x}"
