"""Solve systems whose A is given only by its products: a LinearOperator, a function or a `DistributedMatrix`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import validate_on_all
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.library.communicators import BlockDistributed, communicator
from mxpeak.library.inputs import Input, device_for, device_of, is_tensor, read
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.info import DISTRIBUTED_MATRIX, FUNCTION, LINEAR_OPERATOR, GmresInfo
from mxpeak.library.sparse.ranks import own_threads, threads_per_rank
from mxpeak.library.sparse.results import solved
from mxpeak.runtime.calls import TURN, outside_turn, threads_for
from mxpeak.solvers.gmres_driver import GmresOptions
from mxpeak.solvers.operator_driver import Operator, OperatorDriver
from mxpeak.solvers.precond.setup import Choice
from mxpeak.solvers.precond.sweeps import UserFunction, kind_of
from mxpeak.solvers.recurrence_driver import RecurrenceOperatorDriver

#: Number of unknowns from which several threads are faster.
MANY = 100_000
#: The values of options that an operator supports.
SUPPORTED = {
    "precision": ("mixed", "fp64", "fp32"),
    "preconditioner": ("auto", "none"),
    "storage": ("auto",),
    "smoother": ("auto",),
}


@dataclass(frozen=True, slots=True)
class GivenOperator:
    """The user's A as a function.

    multiply    the function x -> A x, for the rows of this rank
    order       the number of rows of this rank, or None if only b determines it
    kind        the name of the kind of A, which is also the storage in `info`
    nnz         the number of entries, or 0 if it is unknown
    is_complex  whether A is complex, or None if only a product shows this
    matrix      the distributed matrix, or None
    """

    multiply: Callable[[Any], Any]
    order: int | None
    kind: str
    is_complex: bool | None = None
    matrix: BlockDistributed | None = None
    nnz: int = 0


def operator_of(A: Any) -> GivenOperator | None:
    """Return A as an operator, or None if it is a matrix or another object; raise a UsageError for an invalid shape."""
    if isinstance(A, BlockDistributed):
        own = A.starts[A.comm.rank + 1] - A.starts[A.comm.rank]
        return GivenOperator(A.multiply, own, DISTRIBUTED_MATRIX, A.dtype.kind == "c", A, A.n**2)
    if sparse.issparse(A) or is_tensor(A) or isinstance(A, np.ndarray):
        return None
    if hasattr(A, "matvec") and hasattr(A, "shape"):
        shape = tuple(A.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise UsageError(
                f"A is an operator of shape {shape}, but the solver needs a square A; use scipy.sparse.linalg.lsqr, "
                "which also needs rmatvec, for least squares"
            )
        is_complex = None if getattr(A, "dtype", None) is None else kind_of(A.dtype) == "complex"
        return GivenOperator(A.matvec, shape[0], LINEAR_OPERATOR, is_complex)
    return GivenOperator(A, None, FUNCTION) if callable(A) else None


def solve_operator(
    A: GivenOperator, b: Any, x0: Any, options: Callable[[], GmresOptions], device: str, comm: Any
) -> tuple[Any, GmresInfo]:
    """Solve A x = b for an operator in one process, or over the ranks of `comm` or of a distributed A.

    `options` returns the checked options. Each rank passes its rows of b and x0. Collective.
    """
    ranks = _ranks(A, comm)
    cores = None if ranks.size == 1 else threads_per_rank(ranks)

    def checked() -> tuple[GmresOptions, Any, Input, str]:
        where = device_for(device, *(device_of(operand) or "cpu" for operand in (b, b if x0 is None else x0)))
        right_side = read(b, "b")
        rows = right_side.shape[0] if A.order is None and right_side.shape else A.order
        B = inputs.vectors(b, "b", rows or 0, part=ranks.size > 1)
        return _supported(options(), A, where), where, B, _kind(x0, "x0")

    chosen, where, right_side, kind_of_x0 = validate_on_all(ranks, checked, lambda it: _must_match(A, it[0], it[2], x0))
    if where is None:
        chosen = inputs.outside_turns(chosen)
        A = A if A.matrix else replace(A, multiply=partial(outside_turn, A.multiply))
    rows = right_side.shape[0]
    counts = ranks.bcast_object(ranks.gather_objects(rows))
    group = RankGroup(ranks, tuple(accumulate(counts, initial=0)))
    threads = threads_for(chosen.threads, default=cores if rows >= MANY else 1)
    own = ranks.name == "threads"
    with nullcontext() if own else TURN if ranks.size == 1 else own_threads(threads):
        kernels = sparse_kernels(where, threads, own=own)
        B = group.collectively(lambda: inputs.on_kernels(right_side, kernels))
        if _is_complex(A, B, kind_of_x0, group):
            group.collectively(lambda: _refuse_device(where))
            kernels = sparse_kernels(None, threads, own=own, parts=2)
        with kernels.computing():
            X0 = group.collectively(lambda: inputs.start(x0, right_side, kernels, part=ranks.size > 1))
            operator = Operator(sum(counts), rows, _product(kernels, A, rows, group), A.kind, A.nnz)
            choice, make = _choice(chosen), OperatorDriver if chosen.method == "gmres" else RecurrenceOperatorDriver
            return solved(
                kernels, lambda: make(kernels, operator, choice, chosen, group), right_side, (B, X0), chosen, group
            )


def _ranks(A: GivenOperator, comm: Any) -> Communicator:
    """Return the communicator of the ranks that share A."""
    if A.matrix is None:
        return communicator(comm)
    if comm is not None:
        raise UsageError("comm conflicts with A, because a DistributedMatrix has its own ranks; omit comm")
    return A.matrix.comm


def _supported(options: GmresOptions, A: GivenOperator, device: Any) -> GmresOptions:
    """Return the options; raise a UsageError for those that need the entries of A, and for a device of its ranks."""
    if A.matrix is not None and device is not None:
        raise UsageError(f"A is distributed over CPUs, but b is on {device.where}; use b.cpu()")
    for name, allowed in SUPPORTED.items():
        value = getattr(options, name)
        if value not in allowed and not callable(value):
            raise UsageError(
                f'{name}="{value}" needs the entries of A, but A is given as a {A.kind}; use {name}="{allowed[0]}"'
                f"{', a preconditioner M' if name == 'preconditioner' else ''}, or pass a sparse matrix"
            )
    return options


def _must_match(A: GivenOperator, options: GmresOptions, right_side: Input, x0: Any) -> str:
    """Return the arguments that must be equal on all ranks, as text."""
    names = ("method", "precision", "rtol", "atol", "restart", "maxiter")
    values = ", ".join(f"{name}={getattr(options, name)}" for name in names)
    preconditioner = "a function" if callable(options.preconditioner) else options.preconditioner
    shape = f"columns of b {right_side.shape[1:]}, b.dtype={right_side.dtype}, x0 {'none' if x0 is None else 'given'}"
    types = {None: "no dtype", False: "a real dtype", True: "a complex dtype"}
    return f"{values}, preconditioner={preconditioner}, A={A.kind} with {types[A.is_complex]}, {shape}"


def _is_complex(A: GivenOperator, B: Any, kind_of_x0: str, group: RankGroup) -> bool:
    """Return whether the system needs complex kernels. Collective.

    A function without a type is called once, with the first column of b or with complex numbers if b or x0 is complex.
    """
    if A.is_complex is not None:
        return A.is_complex
    if group.largest(float("complex" in (kind_of(B.dtype), kind_of_x0))) > 0:
        return True
    if not (group.sum(B.shape[0]) and all(B.shape[1:])):
        return False
    first = B if B.ndim == 1 else B[:, 0]
    kind = group.shared(lambda x: _kind(A.multiply(x), "A x"))(first + 0.0)
    return group.largest(float(kind == "complex")) > 0


def _kind(values: Any, name: str) -> str:
    """Return the kind of number in an array, a tensor or a sequence; raise a UsageError for a ragged sequence."""
    try:
        return kind_of(values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} is not a numeric array: {error}; use an array of numbers") from None


def _refuse_device(device: Any) -> None:
    if device is not None:
        raise UsageError(
            f'A x is complex, but mxpeak solves complex sparse systems on CPUs, not on {device.where}; use device="cpu"'
        )


def _product(kernels: SparseKernels, A: GivenOperator, rows: int, group: RankGroup) -> Callable[[Any], Any]:
    """Return the function x -> A x with checks of its results. The function is collective."""
    function = UserFunction(kernels, A.multiply, rows, f"the {A.kind} A", "A x")
    return group.shared(function)


def _choice(options: GmresOptions) -> Choice:
    if callable(options.preconditioner):
        return Choice("user", "as asked", options.preconditioner)
    reason = "as asked" if options.preconditioner == "none" else "there is no M, and A has no entries to build one"
    return Choice("none", reason)
