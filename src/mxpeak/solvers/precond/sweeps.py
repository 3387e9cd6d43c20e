"""Preconditioners M^-1 r that need no set-up of their own: sweeps, the identity and user-defined functions.

Each call returns a halo vector of the preconditioned matrix, which the next call overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import nan, prod
from typing import Any

import numpy as np

from mxpeak.distributed.spaces import vector_type, zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.solvers.precond.equilibration import Equilibration, ldexp
from mxpeak.spans import Spans

#: The kinds of numbers that a preconditioner may return for real vectors, and for complex vectors.
KINDS = {1: ("real",), 2: ("real", "complex")}


class Identity:
    """The preconditioner `none`, M = I."""

    def __init__(self, A: SparseMatrix):
        self._A, self._x = A, A.halo_vector()
        self.bytes = int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """Return a copy of r in a halo vector."""
        self._A.own(self._x)[:] = r
        return self._x


class Sweep(Identity):
    """One forward Gauss–Seidel sweep from zero; if all rows are in one group, this is a Jacobi step, r_i / a_ii."""

    def __call__(self, r: Vector) -> Vector:
        """Return (D + L)^-1 r."""
        self._A.relax_from_zero(r, self._x)
        return self._x


class SymmetricSweep(Identity):
    """A forward and a backward Gauss–Seidel sweep from zero."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix):
        super().__init__(A)
        self._keep = zeros(kernels, A.n, A.A.vectors)
        self.bytes += int(self._keep.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """Return (D + U)^-1 D (D + L)^-1 r."""
        self._A.relax_from_zero(r, self._x, self._keep)
        self._A.relax_backward(r, self._x, self._keep)
        return self._x


class UserFunction:
    """A user's function of a vector of n numbers, or of this rank's n numbers, with checks of its results.

    name     the function in errors, such as "the preconditioner"
    result   the result that the function must return, such as M^-1 r
    """

    def __init__(self, kernels: SparseKernels, function: Callable[[Vector], Any], n: int, name: str, result: str):
        self._kernels, self._function, self._n, self._name, self._result = kernels, function, n, name, result

    def __call__(self, v: Vector) -> Vector:
        """Return the function of a finite v; raise an error unless the result is a finite vector of length n.

        For real systems, the result must also be real.
        """
        n, xp, kinds = self._n, self._kernels.xp, KINDS[self._kernels.parts]
        is_narrow = v.dtype in (xp.float32, xp.complex64)
        with without_overflow_warnings() if is_narrow else nullcontext():  # the error below replaces them
            z = self._on_device(self._function(v))
        shape = tuple(z.shape)
        if prod(shape) != n or kind_of(z.dtype) not in kinds:
            raise UsageError(
                f"{self._name} returned {z.dtype} of shape {shape} for a vector of shape ({n},); use a function that "
                f"returns {self._result}, which has {n} {' or '.join(kinds)} numbers"
            )
        z = z.reshape(n)
        finite = xp.isfinite(z)
        if not xp.all(finite):
            i = int(xp.argmin(xp.astype(finite, xp.int8)))
            found = f"{self._name} returned {z[i].item()} at [{i}] for a finite vector"
            if is_narrow and xp.any(xp.isinf(z)):
                largest = float(np.finfo(np.float32).max)
                raise UsageError(
                    f'{found} in fp32, whose largest number is {largest:.1e}; use precision="fp64" if its values '
                    "exceed this range, or a function that returns finite numbers"
                )
            raise UsageError(f"{found}; use a function that returns finite numbers")
        return z

    def _on_device(self, z: Any) -> Any:
        """Return the function's result as an array, or as a tensor of the device; raise an error for other types."""
        device = self._kernels.device
        if device is None:
            return np.asarray(z)
        is_tensor = hasattr(z, "layout")
        if is_tensor and z.device == device.where and str(z.layout) == "torch.strided":
            return z.detach()  # x does not depend on the function, so it has no gradient with respect to z
        what = f"a {z.layout} tensor on {z.device}" if is_tensor else f"{type(z).__name__} instead of a tensor"
        raise UsageError(
            f"{self._name} returned {what}, but on {device.where} its argument and its result must be "
            'dense tensors; use device="cpu" for functions of NumPy arrays'
        )


class UserPreconditioner:
    """A user's function r -> M^-1 r for vectors of the unscaled system, or for the part of this rank."""

    def __init__(
        self,
        kernels: SparseKernels,
        A: SparseMatrix,
        function: Callable[[Vector], Any],
        scaling: Equilibration,
        spans: Spans,
    ):
        self._kernels, self._A, self._scaling, self._spans = kernels, A, scaling, spans
        self._function = UserFunction(kernels, function, A.n, "the preconditioner", "M^-1 r")
        self._apply_on_all = scaling.group.shared(self._apply)
        self._x = A.halo_vector()
        self.bytes = int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """Return D_c^-1 M^-1 D_r^-1 r. Collective."""
        xp, group, x = self._kernels.xp, self._scaling.group, self._A.own(self._x)
        if not group.all(xp.all(xp.isfinite(r))):
            x[:] = nan  # not passed to the user's function: the solver detects it and continues in fp64
            return self._x
        with self._spans("preconditioner"):
            z = self._apply_on_all(r)
            with np.errstate(over="ignore"):
                x[:] = z
        return self._x

    def _apply(self, r: Vector) -> Vector:
        """Call the user's function with the unscaled r, and return the result scaled for the solved system."""
        xp, scaling = self._kernels.xp, self._scaling
        if not scaling.active:
            return self._function(xp.asarray(r, copy=True))
        fp64 = vector_type(self._kernels, "fp64")
        unscaled = ldexp(xp.astype(r, fp64), -scaling.rows, xp)
        return ldexp(xp.astype(self._function(unscaled), fp64), -scaling.columns, xp)


def without_overflow_warnings() -> AbstractContextManager[object]:
    """Return a context without NumPy's warnings of overflow and of inf - inf; settings other than `warn` remain."""
    now = np.geterr()
    return np.errstate(
        over="ignore" if now["over"] == "warn" else None, invalid="ignore" if now["invalid"] == "warn" else None
    )


def kind_of(dtype: Any) -> str:
    """Return `real` or `complex` for a numeric dtype of NumPy or torch, and an empty string for others."""
    if isinstance(dtype, np.dtype):
        return "complex" if dtype.kind == "c" else "real" if dtype.kind in "biuf" else ""
    if dtype.is_complex:
        return "complex"
    whole = str(dtype).startswith(("torch.bool", "torch.int", "torch.uint"))
    return "real" if whole or (dtype.is_floating_point and dtype.itemsize > 1) else ""
