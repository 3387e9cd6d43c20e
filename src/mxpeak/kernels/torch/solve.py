"""What solving takes of a device: tensors in and out, sums and maxima, factors and what is done with them.

The same operations as those of arrays on the host (`dense.host`).  Scales and sizes of rows and columns are few numbers
and come to the host, where it is decided what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, isqrt
from typing import Any

import numpy as np
import torch

from mxpeak.errors import ResourceError
from mxpeak.kernels.torch import pivoted_lu
from mxpeak.kernels.torch.blas import fp32_products
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.namespace import Namespace
from mxpeak.kernels.torch.tensors import tensor_of

Tensor = Any
Array = np.ndarray[Any, np.dtype[Any]]

#: Entries that are worked on at a time where torch's operations leave copies.
STRIP = 1 << 24
#: Bytes of those copies for each entry, and those of the libraries' own room.
COPIES, LIBRARY = 32, 1 << 26
#: Steps of the estimate of ||A^-1||; it seldom takes more than three (Higham 1988).
ESTIMATE_STEPS = 5


@dataclass(frozen=True, slots=True)
class TorchLU:
    """Row i of L U is row rows[i] of A, or of A^T if transposed; singular: the first zero pivot, from 1."""

    LU: Tensor
    rows: Tensor
    transposed: bool
    singular: int

    @property
    def dtype(self) -> Any:
        """The type of the factors."""
        return self.LU.dtype

    @property
    def diagonal(self) -> Array:
        """|u_ii|."""
        return to_numpy(self.LU.diagonal().abs())

    def largest_of_upper(self) -> float:
        """max |u_ij|, inf if one is not finite."""
        by_rows = self.LU.stride(1) == 1
        T = self.LU if by_rows else self.LU.T
        found = torch.zeros((), dtype=T.real.dtype, device=T.device)
        for s in _strips(T):
            part = torch.triu(T[s], s.start) if by_rows else torch.tril(T[s], s.start)
            found = torch.maximum(found, part.abs().amax())
        largest = float(found)
        return largest if isfinite(largest) else float("inf")

    def apply(self, R: Tensor) -> Tensor:
        """A^-1 R in the factors' precision, each column brought near 1 for their range."""
        if R.dtype == self.LU.dtype:
            return self._solve(R)
        scale = _powers(R.abs().amax(dim=0))
        return (self._solve((R * scale).to(self.LU.dtype)) / scale).to(R.dtype)

    def _solve(self, B: Tensor, *, of_transpose: bool = False) -> Tensor:
        """A^-1 B or A^-T B: the factors read row- and column-major matrices as they lie."""
        solve = torch.linalg.solve_triangular
        if of_transpose == self.transposed:
            Z = solve(self.LU, B.index_select(0, self.rows), upper=False, unitriangular=True)
            return solve(self.LU, Z, upper=True)
        Z = solve(self.LU.T, solve(self.LU.T, B, upper=False), upper=True, unitriangular=True)
        return torch.empty_like(Z).index_copy_(0, self.rows, Z)

    def _solve_adjoint(self, B: Tensor) -> Tensor:
        """A^-H B."""
        return self._solve(B.conj_physical(), of_transpose=True).conj_physical()

    def inverse_one_norm(self) -> float:
        """Higham's estimate of ||A^-1||_1, a lower bound that is rarely 3 times too small (Higham 1988)."""
        n = self.LU.shape[0]
        x = torch.full((n, 1), 1.0 / n, dtype=self.LU.dtype, device=self.LU.device)
        estimate = 0.0
        for _ in range(ESTIMATE_STEPS):
            y = self._solve(x)
            found = float(y.abs().sum(dtype=torch.float64))
            if not isfinite(found):
                return float("inf")
            if found <= estimate:
                break
            estimate = found
            z = self._solve_adjoint(torch.where(y == 0, 1.0, torch.sgn(y)))
            largest, j = z.abs().flatten().max(dim=0)
            if not float(largest) > abs(complex(torch.vdot(z[:, 0], x[:, 0]))):
                break
            x = torch.zeros_like(x)
            x[j] = 1.0
        return max(estimate, self._estimate_by_signs())

    def _estimate_by_signs(self) -> float:
        """The estimate by a vector of alternating signs, for matrices that are made to deceive the other one."""
        n = self.LU.shape[0]
        i = torch.arange(n, dtype=torch.float64, device=self.LU.device)
        x = (1 - 2 * (i % 2)) * (1 + i / max(n - 1, 1))
        found = float(self._solve(x[:, None].to(self.LU.dtype)).abs().sum(dtype=torch.float64))
        return 2 * found / (3 * n) if isfinite(found) else float("inf")


class TorchArrays:
    """Matrices and blocks of right-hand sides on a device."""

    on_device = True

    def __init__(self, device: Device, width: int = pivoted_lu.WIDTH):
        self.device, self._width = device, width
        self.xp = Namespace(device.where)

    @property
    def stopwatch(self) -> Device:
        """The clock of the device."""
        return self.device

    @contextmanager
    def careful(self) -> Iterator[None]:
        """Work on this device, FP32 products in full whatever was set."""
        with fp32_products("ieee"):
            if self.device.is_gpu:
                with torch.cuda.device(self.device.where):
                    yield
            else:
                yield

    def emulates(self, precision: str, dtype: np.dtype[Any]) -> bool:
        """Whether operands of a precision are rounded in software, for products of a wider one."""
        if precision in ("fp64", "fp32"):
            return False
        return dtype.kind == "c" or not self.device.multiplies(precision)

    # --- what comes in, what goes out

    def take(self, values: Any, dtype: np.dtype[Any], precision: str = "") -> Tensor:
        """The values here, in a type, as products take them: copied where they are not so; with room for an LU."""
        A = values if isinstance(values, torch.Tensor) else tensor_of(np.require(values, dtype, "A"))
        A = A.resolve_conj().resolve_neg()
        wanted = _type(dtype)
        lies_well = A.dim() < 2 or _by_rows(A) or _by_rows(A.T)
        copied = A.device != self.device.where or A.dtype != wanted or not lies_well
        if precision:
            self._check_memory(A.shape[0], dtype, precision, dtype.itemsize if copied else 0)
        A = A.to(device=self.device.where, dtype=wanted)
        return A if lies_well else A.contiguous()

    def block(self, b: Tensor, dtype: np.dtype[Any]) -> Tensor:
        """b as a block of A's type; for a real A, real and imaginary parts are columns of their own."""
        columns = b.reshape(b.shape[0], -1)
        if columns.is_complex() and dtype.kind != "c":
            columns = torch.cat([columns.real, columns.imag], dim=1)
        return columns.to(_type(dtype))

    def not_finite(self, A: Tensor) -> tuple[tuple[int, ...], int] | None:
        """Where the first entry is that is not finite, and how many there are."""
        rows = A if A.dim() == 2 else A[:, None]
        count = int(sum((~torch.isfinite(rows[s])).sum() for s in _strips(rows)))
        if not count:
            return None
        strip = next(s for s in _strips(rows) if not bool(torch.isfinite(rows[s]).all()))
        first = int(torch.isfinite(rows[strip]).reshape(-1).to(torch.uint8).argmin())
        i, j = divmod(first, rows.shape[1])
        return (strip.start + i, j)[: A.dim()], count

    # --- memory

    def _check_memory(self, n: int, dtype: np.dtype[Any], precision: str, copied: int) -> None:
        """Stop where a copy of A and its factors do not fit."""
        is_complex = dtype.kind == "c"
        factors = (8 if precision == "fp64" else 4) * (2 if is_complex else 1)
        by_library = precision in ("fp64", "fp32")
        per_row = 0 if by_library else pivoted_lu.work_per_row(precision, is_complex, min(self._width, n))
        work = per_row * n + COPIES * min(STRIP, n * n) + LIBRARY
        needed = (copied + factors) * n * n + work
        _, free = self.device.memory()
        if needed <= free:
            return
        parts = [f"a copy of A {copied}·n²"] * bool(copied) + [f"the factors {factors}·n²"]
        parts += [f"work {work} bytes"]
        raise ResourceError(
            f"n = {n}: {' + '.join(parts)} = {needed / 1e9:.3g} GB, but {self.device.where} has {free / 1e9:.3g} GB "
            f"left; the largest n that fits is {largest_order(copied + factors, per_row, free)}; free memory on it, or "
            'solve on the host: device="cpu"'
        )

    # --- the factorization

    def by_rows(self, A: Tensor) -> bool:
        """Whether A's rows are contiguous."""
        return _by_rows(A)

    def room(self, n: int, dtype: np.dtype[Any], precision: str) -> Tensor:
        """A matrix, uninitialised, by rows without gaps: triangular solves read no other without copying it."""
        self._check_memory(n, dtype, precision, 0)
        return self.device.empty(n, n, dtype=_type(dtype))

    def fill(self, W: Tensor, R: Tensor, scales: tuple[Array, Array] | None) -> tuple[Array, Array, float]:
        """W = R, scaled and cast; the sums of |w_ij| along rows and columns, and the largest."""
        n = R.shape[0]
        rows, columns = self.device.empty(n), self.device.zeros(R.shape[1])
        largest = self.device.zeros()
        by_row, by_column = self._sent(scales)
        for s in _strips(R):
            W[s] = R[s] if scales is None else R[s] * (by_row[s, None] * by_column)
            size = W[s].abs()
            torch.sum(size, dim=1, dtype=torch.float64, out=rows[s])
            columns += size.sum(dim=0, dtype=torch.float64)
            largest = torch.maximum(largest, size.amax().to(torch.float64))
        return to_numpy(rows), to_numpy(columns), float(largest)

    def largest_entries(self, R: Tensor, by_row: Array, by_column: Array) -> tuple[Array, Array]:
        """The largest entries of the rows and of the columns of |R|, scaled."""
        row_scale, column_scale = self._sent((by_row, by_column))
        rows, columns = self.device.empty(R.shape[0]), self.device.zeros(R.shape[1])
        for s in _strips(R):
            size = R[s].abs() * row_scale[s, None] * column_scale
            rows[s] = size.amax(dim=1)
            columns = torch.maximum(columns, size.amax(dim=0))
        return to_numpy(rows), to_numpy(columns)

    def inf_norm(self, R: Tensor, by_rows: bool) -> float:
        """||R||_inf, or that of R^T."""
        largest, sums = self.device.zeros(), self.device.zeros(R.shape[1])
        for s in _strips(R):
            size = R[s].abs()
            if by_rows:
                largest = torch.maximum(largest, size.sum(dim=1, dtype=torch.float64).amax())
            else:
                sums += size.sum(dim=0, dtype=torch.float64)
        return float(largest if by_rows else sums.amax())

    def lu(self, W: Tensor, precision: str, by_rows: bool) -> TorchLU:
        """The factors of A in W's place, W = A if A lies by rows, else A^T.

        The library takes columns, so it is given W^T; where we move rows ourselves, they lie as rows.
        """
        if precision in ("fp64", "fp32"):
            rows, singular = pivoted_lu.factor_whole(W.T)
            return TorchLU(W.T, rows, by_rows, int(singular))
        rows, singular = pivoted_lu.factor_rounded(self.device, W, precision, self._width)
        return TorchLU(W, rows, not by_rows, int(singular))

    def _sent(self, scales: tuple[Array, Array] | None) -> tuple[Any, Any]:
        return (None, None) if scales is None else (self.device.tensor(scales[0]), self.device.tensor(scales[1]))

    # --- blocks, one right-hand side a column

    def largest(self, V: Tensor) -> Array:
        """max_i |v_ij| of each column, in fp64."""
        return to_numpy(V.abs().amax(dim=0).to(torch.float64))

    def product(self, A: Tensor, Y: Tensor) -> Tensor:
        """A Y."""
        return torch.mv(A, Y[:, 0])[:, None] if Y.shape[1] == 1 else torch.mm(A, Y)

    def minus_product(self, B: Tensor, A: Tensor, Y: Tensor) -> Tensor:
        """B - A Y as a new block."""
        if Y.shape[1] == 1:
            return torch.addmv(B[:, 0], A, Y[:, 0], alpha=-1)[:, None]
        return torch.addmm(B, A, Y, alpha=-1)

    def scaled(self, diagonal: Array, X: Tensor) -> Tensor:
        """D X as a new block."""
        return (X * self.device.tensor(diagonal)[:, None]).to(X.dtype)

    def combined(self, V: Tensor, w: Array) -> Tensor:
        """V w as a block of one column."""
        return torch.mv(V, self.device.tensor(w).to(V.dtype))[:, None]

    def columns(self, V: Tensor, which: Array) -> Tensor:
        """Some columns, as a block."""
        return V if len(which) == V.shape[1] else V.index_select(1, self.device.tensor(which))

    def put(self, Y: Tensor, columns: Array, new: Tensor, which: Array) -> None:
        """Y's columns become some of the new ones."""
        Y.index_copy_(1, self.device.tensor(columns), self.columns(new, which))


def to_numpy(x: Tensor) -> Array:
    """A tensor as an array."""
    return np.asarray(x.cpu().numpy())


def largest_order(per_entry: int, per_row: int, free: int) -> int:
    """The largest n whose copies, factors and work fit into so many bytes."""
    small = min(_root(per_entry + COPIES, per_row, free - LIBRARY), isqrt(STRIP))
    return max(small, _root(per_entry, per_row, free - LIBRARY - COPIES * STRIP))


def _root(a: int, b: int, c: int) -> int:
    """The largest n with a·n² + b·n <= c, or 0."""
    return (isqrt(b * b + 4 * a * c) - b) // (2 * a) if c > 0 else 0


def _type(dtype: np.dtype[Any]) -> Any:
    return getattr(torch, dtype.name)


def _by_rows(A: Tensor) -> bool:
    """Whether products read A as it lies: contiguous rows, one after the other with or without a gap."""
    return A.shape[1] == 1 or bool(A.stride(1) == 1 and A.stride(0) >= A.shape[1])


def _powers(largest: Tensor) -> Tensor:
    """The power of two that brings each number to [1/2, 1); 1 for a zero."""
    k = -torch.frexp(largest.to(torch.float64))[1].clamp(-1000, 1000).to(torch.int64)
    return ((k + 1023) << 52).view(torch.float64)


def _strips(R: Tensor) -> Iterator[slice]:
    """R's rows, so many at a time."""
    height = max(1, STRIP // max(R.shape[1], 1))
    return (slice(i, min(i + height, R.shape[0])) for i in range(0, R.shape[0], height))
