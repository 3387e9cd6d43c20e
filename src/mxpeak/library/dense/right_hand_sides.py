"""Read the right-hand side b of a distributed dense system, and return all rows of b on every rank.

Users pass b in one of three ways: the complete b on every rank, a function of the row indices, or the local rows of
each rank.
"""

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
    """Return the complete b on all ranks. If `local`, gather it from the rows that the ranks pass. Collective."""
    if callable(b):
        return validate_on_all(A.comm, lambda: _numbers(right_hand_side(b(np.arange(A.n)), A.n)), _fingerprint)
    if not local:
        return validate_on_all(A.comm, lambda: _whole(A, b), _fingerprint)
    rows = validate_on_all(A.comm, lambda: _rows(A, b), lambda rows: f"b of {rows.shape[1:] or 'one column'}")
    return np.concatenate(A.comm.bcast_object(A.comm.gather_objects(rows)))


def _whole(A: DistributedMatrix, b: Any) -> Array:
    """Return all rows of an array b as numbers; raise a UsageError if b has another number of rows."""
    shape, local = read(b, "b").shape, len(A.own_rows)
    if shape and shape[0] == local != A.n:
        raise UsageError(
            f"A is {A.n}x{A.n}, but b has shape {shape}; use all {A.n} rows on every rank, or local=True "
            f"with the {local} rows of this rank"
        )
    return _numbers(right_hand_side(b, A.n))


def _rows(A: DistributedMatrix, b: Any) -> Array:
    """Return this rank's rows of b as numbers; raise a UsageError if b has another number of rows."""
    rows = A.own_rows
    values, m = read(b, "b"), rows.stop - rows.start
    if len(values.shape) not in (1, 2) or values.shape[0] != m:
        raise UsageError(
            f"this rank has rows {rows.start} to {rows.stop} of A, but b has shape {values.shape}; use shape "
            f"({m},) or ({m}, k) with local=True, or all {A.n} rows on every rank without it"
        )
    return _numbers(values)


def _numbers(b: Input) -> Array:
    """Return a copy of b in float64 or complex128; raise a UsageError if an entry is not finite."""
    B = np.array(b.on(None, wide_type(b.dtype, "b")))
    check_finite(B, "b", np)
    return B


def _fingerprint(B: Array) -> str:
    """Return a text with the type, shape and checksum of b, which must be equal on all ranks."""
    return f"b of {B.dtype}, shape {B.shape}, checksum {zlib.crc32(B.tobytes()):08x}"
