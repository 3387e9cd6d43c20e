"""solve and lu_factor on a Dask cluster: what the client does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import dask.array as da
import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.dask import seats
from mxpeak.library.dask.chunks import check_limits, check_matrix, shared
from mxpeak.library.dask.ranks import Ranks, the_client, the_workers
from mxpeak.library.dense import DistributedInfo
from mxpeak.library.dense.inputs import form_of, right_hand_side
from mxpeak.library.dense.real_form import real_columns
from mxpeak.library.dense.sources import wide_type
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
) -> tuple[Any, DistributedInfo]:
    """Solve A x = b for a Dask array A in chunks.

    `transposed`: True or "T" solves A^T x = b, "H" A^H x = b with the conjugate transpose, False or "N" A x = b.

    x is a Dask array if b is one, else a NumPy array.

    The ranks are the workers of the client's cluster, or those of `workers`, by their addresses; `client` is by default
    the current one.  Precision and info are those of `mxpeak.solve` for distributed matrices.
    """
    order, form = check_matrix(A), form_of(transposed)
    sides = real_columns(_sides(b), A.dtype, _check_b(b, order))
    with _factored(A, sides, precision, client, workers) as F:
        return warned(*F.solve_quietly(b, transposed=form))


def lu_factor(
    A: Any, *, precision: str = "auto", client: Any = None, workers: Sequence[str] | None = None
) -> DaskFactors:
    """Factor a Dask array A in chunks; the factors stay with the workers until they are closed.

    `with mx.dask.lu_factor(A) as F:`, then `x, info = F.solve(b)`.
    """
    return _factored(A, 1, precision, client, workers)


def _factored(A: Any, sides: int, precision: str, client: Any, workers: Sequence[str] | None) -> DaskFactors:
    n, client = check_matrix(A), the_client(client)
    workers = the_workers(client, workers)
    dtype = wide_type(A.dtype, "A")
    check_limits(client, workers, n, 2 if dtype.kind == "c" else 1)
    with client.as_current():
        chunks = shared(client, workers, A)
        ranks = Ranks(client, workers)

        def arguments(rank: int) -> list[Any]:
            places, futures = [place for place, _ in chunks[rank]], [future for _, future in chunks[rank]]
            return [rank, ranks.addresses, ranks.secret, n, places, precision, sides, *futures]

        try:
            with ranks.turn():
                ranks.call(seats.factor, arguments)
        except BaseException:
            ranks.close()
            raise
    return DaskFactors(ranks, n, dtype)


class DaskFactors:
    """Factors that lie with the workers of a Dask cluster; `close`, or the end of a `with`, frees them."""

    def __init__(self, ranks: Ranks, n: int, dtype: np.dtype[Any]):
        self._ranks, self.n, self._dtype = ranks, n, dtype
        self._close = finalize(self, ranks.close)

    def __enter__(self) -> DaskFactors:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DaskFactors({self.n}x{self.n}, on {len(self._ranks.workers)} workers)"

    def close(self) -> None:
        """Free the memory of the factors."""
        self._close()

    def solve(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, DistributedInfo]:
        """Solve A x = b, A^T x = b or A^H x = b as `solve` does; x lies as b does."""
        return warned(*self.solve_quietly(b, transposed=transposed))

    def solve_quietly(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, DistributedInfo]:
        """The same without a warning."""
        if not self._close.alive:
            raise UsageError("these factors are closed; factor A again: mxpeak.dask.lu_factor(A)")
        _check_b(b, self.n)
        form = form_of(transposed)
        with self._ranks.client.as_current():
            return self._solved(b, form)

    def _solved(self, b: Any, form: str) -> tuple[Any, DistributedInfo]:
        ranks, client, workers = self._ranks, self._ranks.client, self._ranks.workers
        in_chunks = isinstance(b, da.Array)
        if in_chunks:
            whole = client.compute(b, workers=workers)
        else:  # under a name of its own: another thread may send, and free, an equal b
            whole = client.scatter(np.asarray(b), workers=workers, hash=False)
        with ranks.turn():
            info = ranks.call(seats.solve, lambda rank: [whole, form])[0]
            x = ranks.fetch()  # before the next solve, and before the ranks are closed
        if not in_chunks:
            return x.result(), info
        return da.from_delayed(x, b.shape, np.result_type(self._dtype, wide_type(b.dtype, "b"))).rechunk(b.chunks), info


def _check_b(b: Any, n: int) -> np.dtype[Any]:
    """The wide type of b's numbers: finite, in as many rows as A; what a Dask array holds is seen by the workers."""
    if not isinstance(b, da.Array):
        checked = right_hand_side(b, n)
        dtype = wide_type(checked.dtype, "b")
        check_finite(checked.on(None), "b", np)
        return dtype
    if b.ndim not in (1, 2) or b.shape[0] != n or any(map(np.isnan, b.shape)):
        raise UsageError(f"A is {n}x{n}, but b has shape {b.shape}: it is to be ({n},), or ({n}, k)")
    return wide_type(b.dtype, "b")


def _sides(b: Any) -> int:
    """How many right-hand sides b has."""
    shape = np.shape(b)
    return int(shape[1]) if len(shape) == 2 else 1
