"""Functions that compute norms of matrices, of their columns and of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mxpeak.configs.norms import KINDS
from mxpeak.kernels.choose import host_norms
from mxpeak.library.frameworks import framework_of
from mxpeak.library.inputs import as_array, is_tensor
from mxpeak.library.norms.prepare import NormOptions, dense, kind_name, prepare
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.exact_norms import reproducible_norms, vector_norms
from mxpeak.solvers.norms import PARTIAL


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
        The device does not exist.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.norm([[3.0, -4.0], [0.0, 1.0]], "one")
    5.0
    """
    array = A
    if type(A) is not np.ndarray and (is_tensor(A) or framework_of(A)):
        A = dense(A, "A")
        array = as_array(A.array) if A.device == "cpu" else A
    if type(array) is np.ndarray and structure == "general" and not deterministic and device in ("auto", "cpu"):
        partial = PARTIAL.get(kind_name(kind))
        defaults = (uplo, diag, kl, ku, threads) == (None,) * 5
        if partial and defaults and (value := host_norms(1).small_norm(array, partial)) is not None:
            return value
    (value,) = _norms(A, (kind,), NormOptions(structure, uplo, diag, kl, ku, deterministic, threads, device)).values()
    return value


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
        The device does not exist.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.norms([[3.0, -4.0], [0.0, 1.0]]).inf
    7.0
    """
    return Norms(**_norms(A, tuple(KINDS), NormOptions(structure, uplo, diag, kl, ku, deterministic, threads, device)))


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
        The device does not exist.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.column_norms([[3.0, -4.0], [4.0, 1.0]], "one")
    array([7., 5.])
    """
    return _vector_norms(A, kind, "columns", NormOptions(structure, uplo, diag, kl, ku, True, threads, device))


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
        The device does not exist.

    Examples
    --------
    >>> import mxpeak as mx
    >>> mx.row_norms([[3.0, -4.0], [4.0, 1.0]], "one")
    array([7., 5.])
    """
    return _vector_norms(A, kind, "rows", NormOptions(structure, uplo, diag, kl, ku, True, threads, device))


def _norms(A: Any, kinds: Sequence[Any], options: NormOptions) -> dict[str, float]:
    """Compute the requested kinds of norms of A, and return the norms by name. Collective over A's ranks."""
    call = prepare(A, kinds, "norm", options)
    compute = reproducible_norms if options.deterministic else four_stages.distributed_norms
    with np.errstate(all="ignore"):  # overflow gives Inf
        return compute(call.matrix, call.structure, call.kinds, call.kernels)


def _vector_norms(A: Any, kind: Any, by: str, options: NormOptions) -> Any:
    """Compute the norm of every row or column, and return an array or, for a tensor A, a tensor.

    Collective over A's ranks.
    """
    call = prepare(A, (kind,), by, options)
    with np.errstate(all="ignore"):
        return call.restore(vector_norms(call.matrix, call.structure, call.kinds[0], by, call.kernels))
