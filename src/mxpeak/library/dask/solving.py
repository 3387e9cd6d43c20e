"""Functions that run in the client of a Dask cluster: factor A and solve systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import dask.array as da
import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.dask import seats
from mxpeak.library.dask.chunks import check_limits, check_matrix, shared
from mxpeak.library.dask.ranks import WorkerRanks, the_client, the_workers
from mxpeak.library.dense import SolveInfo
from mxpeak.library.dense.inputs import form_of, right_hand_side
from mxpeak.library.dense.matrix_source import wide_type
from mxpeak.library.dense.real_form import real_columns
from mxpeak.library.dense.symmetric import SymmetricKind, structure_of
from mxpeak.library.inputs import check_finite
from mxpeak.library.outcomes import warned


def solve(
    A: Any,
    b: Any,
    *,
    transposed: bool | str = False,
    precision: str = "auto",
    client: Any = None,
    workers: Sequence[str] | None = None,
    assume_a: str = "gen",
    lower: bool = False,
) -> tuple[Any, SolveInfo]:
    """Solve A x = b for a matrix A that is stored as a chunked Dask array.

    The Dask workers factor A and refine x in the same way as the ranks of a `DistributedMatrix`.

    Parameters
    ----------
    A : dask.array.Array
        Square matrix whose chunk sizes are known.
    b : array_like or dask.array.Array
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
    transposed : bool or {"N", "T", "H"}, default False
        Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factors.
    client : dask.distributed.Client, optional
        Client of the Dask cluster. By default, mxpeak uses the current client.
    workers : sequence of str, optional
        Addresses of the workers to use. By default, mxpeak uses all workers.
    assume_a : {"gen", "pos", "sym", "her", "auto"}, default "gen"
        Structure of A, as in `mxpeak.solve` for a `DistributedMatrix`.
    lower : bool, default False
        Triangle of A that "pos", "sym" and "her" read: the lower one if True, otherwise the upper one. The other
        triangle must have finite values, which are not used.

    Returns
    -------
    x : ndarray or dask.array.Array
        Solution with the shape of b. If b is a Dask array, x is a Dask array with the same chunks.
    info : SolveInfo
        Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

    Raises
    ------
    UsageError
        An argument is invalid, no Dask cluster is available, or Dask is not installed.
    SingularMatrixError
        A pivot is exactly zero.
    NotPositiveDefiniteError
        `assume_a` is "pos", but a leading minor of A is not positive.
    ResourceError
        There is not enough memory.
    MxpeakError
        A Dask worker died, or its computation failed.

    Warns
    -----
    IllConditionedWarning
        The solution x may have no correct digits, for example because A is singular to working precision.
    NotSolvedWarning
        The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

    Examples
    --------
    >>> import dask.array as da, mxpeak as mx, numpy as np
    >>> from dask.distributed import Client
    >>> client = Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None)
    >>> A = 4.0 * da.eye(6, chunks=3)
    >>> x, info = mx.dask.solve(A, np.ones(6))
    >>> x
    array([0.25, 0.25, 0.25, 0.25, 0.25, 0.25])
    >>> client.close()
    """
    order, form, structure = check_matrix(A), form_of(transposed), structure_of(assume_a, lower=lower)
    sides = real_columns(_sides(b), A.dtype, _check_b(b, order))
    with _factored(A, sides, precision, client, workers, structure) as F:
        return warned(*F.solve_quietly(b, transposed=form))


def lu_factor(
    A: Any, *, precision: str = "auto", client: Any = None, workers: Sequence[str] | None = None
) -> DaskFactors:
    """Factor a matrix that is stored as a chunked Dask array.

    The workers keep the factors in memory until you call `close` or leave the `with` block.

    Parameters
    ----------
    A : dask.array.Array
        Square matrix whose chunk sizes are known.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factors.
    client : dask.distributed.Client, optional
        Client of the Dask cluster. By default, mxpeak uses the current client.
    workers : sequence of str, optional
        Addresses of the workers to use. By default, mxpeak uses all workers.

    Returns
    -------
    DaskFactors
        Factors with the methods `solve(b)` and `close()`. Use a `with` statement to free the factors automatically.

    Raises
    ------
    UsageError
        An argument is invalid, no Dask cluster is available, or Dask is not installed.
    SingularMatrixError
        A pivot is exactly zero.
    ResourceError
        There is not enough memory.
    MxpeakError
        A Dask worker died, or its computation failed.

    Examples
    --------
    >>> import dask.array as da, mxpeak as mx, numpy as np
    >>> from dask.distributed import Client
    >>> client = Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None)
    >>> A = 4.0 * da.eye(6, chunks=3)
    >>> with mx.dask.lu_factor(A) as F:
    ...     x, info = F.solve(np.ones(6))
    >>> x
    array([0.25, 0.25, 0.25, 0.25, 0.25, 0.25])
    >>> client.close()
    """
    return _factored(A, 1, precision, client, workers)


def _factored(
    A: Any,
    sides: int,
    precision: str,
    client: Any,
    workers: Sequence[str] | None,
    structure: SymmetricKind | str = "gen",
) -> DaskFactors:
    n, client = check_matrix(A), the_client(client)
    workers = the_workers(client, workers)
    dtype = wide_type(A.dtype, "A")
    check_limits(client, workers, n, 2 if dtype.kind == "c" else 1)
    with client.as_current():
        chunks = shared(client, workers, A)
        ranks = WorkerRanks(client, workers)

        def arguments(rank: int) -> list[Any]:
            places, futures = [place for place, _ in chunks[rank]], [future for _, future in chunks[rank]]
            return [rank, ranks.addresses, ranks.secret, n, places, structure, precision, sides, *futures]

        try:
            with ranks.turn():
                ranks.call(seats.factor_on_seats, arguments)
        except BaseException:
            ranks.close()
            raise
    return DaskFactors(ranks, n, dtype)


class DaskFactors:
    """LU factors on the workers of a Dask cluster, returned by `mxpeak.dask.lu_factor`.

    To free the factors, call `close` or use a `with` statement.

    Attributes
    ----------
    n : int
        Order of the matrix A.
    """

    def __init__(self, ranks: WorkerRanks, n: int, dtype: np.dtype[Any]):
        self._ranks, self.n, self._dtype = ranks, n, dtype
        self._close = finalize(self, ranks.close)

    def __enter__(self) -> DaskFactors:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DaskFactors({self.n}x{self.n}, on {len(self._ranks.workers)} workers)"

    def close(self) -> None:
        """Free the memory that the factors use on the workers."""
        self._close()

    def solve(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, SolveInfo]:
        """Solve A x = b with these factors.

        Parameters
        ----------
        b : array_like or dask.array.Array
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.

        Returns
        -------
        x : ndarray or dask.array.Array
            Solution with the shape of b. If b is a Dask array, x is a Dask array with the same chunks.
        info : SolveInfo
            Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

        Raises
        ------
        UsageError
            An argument is invalid, or the factors are closed.
        MxpeakError
            A Dask worker died, or its computation failed.

        Warns
        -----
        IllConditionedWarning
            The solution x may have no correct digits, for example because A is singular to working precision.
        NotSolvedWarning
            The solution x is not finite, or it is less accurate than the result of a plain LU factorization.
        """
        return warned(*self.solve_quietly(b, transposed=transposed))

    def solve_quietly(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, SolveInfo]:
        """Solve A x = b in the same way as `solve`, but without warnings."""
        if not self._close.alive:
            raise UsageError("these factors are closed; run mxpeak.dask.lu_factor(A) again")
        _check_b(b, self.n)
        form = form_of(transposed)
        with self._ranks.client.as_current():
            return self._solved(b, form)

    def _solved(self, b: Any, form: str) -> tuple[Any, SolveInfo]:
        ranks, client, workers = self._ranks, self._ranks.client, self._ranks.workers
        in_chunks = isinstance(b, da.Array)
        if in_chunks:
            whole = client.compute(b, workers=workers)
        else:
            whole = ranks.scatter(np.asarray(b))
        with ranks.turn():
            info = ranks.call(seats.solve_on_seats, lambda rank: [whole, form])[0]
            x = ranks.fetch()  # fetch x before the next solve overwrites it and before the ranks are closed
        if not in_chunks:
            return x.result(), info
        return da.from_delayed(x, b.shape, np.result_type(self._dtype, wide_type(b.dtype, "b"))).rechunk(b.chunks), info


def _check_b(b: Any, n: int) -> np.dtype[Any]:
    """Check b and return its type for the solve, float64 or complex128; raise a UsageError if b is invalid.

    The entries of a Dask array are not checked.
    """
    if not isinstance(b, da.Array):
        checked = right_hand_side(b, n)
        dtype = wide_type(checked.dtype, "b")
        check_finite(checked.on(None), "b", np)
        return dtype
    if b.ndim not in (1, 2) or b.shape[0] != n or any(map(np.isnan, b.shape)):
        raise UsageError(f"A is {n}x{n}, but b has shape {b.shape}; use shape ({n},) or ({n}, k)")
    return wide_type(b.dtype, "b")


def _sides(b: Any) -> int:
    """Return the number of right-hand sides in b."""
    shape = np.shape(b)
    return int(shape[1]) if len(shape) == 2 else 1
