"""Solve systems A x = b as operations that torch and JAX can differentiate.

    db = A^-H dx,  dA = -db x^H

Both gradients need one more solve, with the factors of the first. The formulas are those of torch. JAX defines the
gradients of complex numbers as their conjugates. JAX passes placeholders instead of arrays in `jax.jit` and `jax.vmap`.
mxpeak then solves in a callback, as soon as JAX has the arrays.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from mxpeak.library.frameworks import is_traced
from mxpeak.library.inputs import as_tensor, is_tensor, requires_gradient

#: The form of the adjoint system: A^H for A, and A for A^H.
ADJOINT = {"N": "H", "H": "N"}

Solve = Callable[[Any, Any, str], Any]


class DifferentiableSystem(ABC):
    """A system A x = b. `numbers` are the entries of A that the library differentiates: all, or those of a sparse A.

    `info` contains the diagnostics of the first solve, or None if all solves are in callbacks. If `needs_b` is True,
    the gradients depend on b.
    """

    info: Any = None
    needs_b = False

    @abstractmethod
    def solve(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x for arrays or tensors, in the format of b; `form` is "N" or "H"."""

    @abstractmethod
    def solve_batch(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x for NumPy arrays with additional leading dimensions, some of which may be 1."""

    @abstractmethod
    def gradient(self, y: Any, x: Any) -> Any:
        """Return the derivative -y x^T with respect to `numbers`, the entries of A."""

    def shape_of_x(self, numbers: Any, b: Any, form: str) -> tuple[int, ...]:
        """Return the shape of x."""
        return tuple(b.shape)

    def gradients(
        self, solve: Solve, operands: tuple[Any, Any, Any], dx: Any, form: str, *, of_A: bool
    ) -> tuple[Any, Any]:
        """Return the gradients with respect to the entries of A, or None unless `of_A`, and with respect to b.

        `operands` are the entries of A, b and x. `solve(numbers, b, form)` is a differentiable operation.
        """
        numbers, _, x = operands
        db = solve(numbers, dx, ADJOINT[form])
        if not of_A:
            return None, db
        return self.gradient(db, x.conj()) if form == "N" else self.gradient(x, db.conj()), db


def is_differentiated(*operands: Any) -> bool:
    """Return whether torch or JAX differentiates, compiles or vectorizes a computation with these operands."""
    return any(is_traced(values) or requires_gradient(values) for values in operands)


def solution(numbers: Any, b: Any, system: DifferentiableSystem) -> Any:
    """Return x = A^-1 b as a differentiable array of the library of `numbers` and b."""
    if is_tensor(b):
        from mxpeak.kernels.torch.engine.autograd import SolveFunction

        return SolveFunction.apply(numbers, b, system, "N")
    return _of_jax()(numbers, b, system, "N")


def operands(*values: Any) -> tuple[Any, list[Any]]:
    """Convert arrays to the library that differentiates one of them, and to one floating-point type.

    Returns the library's namespace, torch or jax.numpy, and the arrays.
    """
    if any(map(is_tensor, values)):
        xp = sys.modules["torch"]
        arrays = [value if is_tensor(value) else as_tensor(np.asarray(value)) for value in values]
        cast = xp.Tensor.to
    else:
        xp = sys.modules["jax"].numpy
        arrays = [xp.asarray(value) for value in values]
        cast = xp.astype
    dtype = arrays[0].dtype
    for array in arrays[1:]:
        dtype = xp.promote_types(dtype, array.dtype)
    least = xp.float32 if "float16" in str(dtype) else xp.float64 if "int" in str(dtype) else dtype
    return xp, [cast(array, xp.promote_types(dtype, least)) for array in arrays]


@cache
def _of_jax() -> Callable[..., Any]:
    """Return the solution x = A^-1 b, or A^-H b, with a derivative rule for JAX."""
    jax = sys.modules["jax"]

    @partial(jax.custom_vjp, nondiff_argnums=(2, 3))
    def solved(numbers: Any, b: Any, system: DifferentiableSystem, form: str) -> Any:
        if not (is_traced(numbers) or is_traced(b)):
            return system.solve(numbers, b, form)
        x = jax.ShapeDtypeStruct(system.shape_of_x(numbers, b, form), b.dtype)
        return jax.pure_callback(partial(_in_callback, system, form), x, numbers, b, vmap_method="expand_dims")

    def forward(numbers: Any, b: Any, system: DifferentiableSystem, form: str) -> tuple[Any, Any]:
        x = solved(numbers, b, system, form)
        return x, (numbers, b if system.needs_b else None, x)

    def backward(system: DifferentiableSystem, form: str, saved: Any, dx: Any) -> tuple[Any, Any]:
        solve = lambda numbers, b, form: solved(numbers, b, system, form)  # noqa: E731
        dA, db = system.gradients(solve, saved, dx.conj(), form, of_A=True)
        return dA.conj(), db.conj()

    solved.defvjp(forward, backward)
    rule: Callable[..., Any] = solved
    return rule


def _in_callback(system: DifferentiableSystem, form: str, numbers: Any, b: Any) -> Any:
    """Return x as a NumPy array. JAX calls this function when it has the arrays."""
    b = np.asarray(b)
    return np.asarray(system.solve_batch(np.asarray(numbers), b, form), b.dtype)
