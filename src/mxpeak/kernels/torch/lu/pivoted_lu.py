"""LU with partial pivoting on one device: by the library, or blocked with rounded operands or emulated products.

    P [A11; A21] = [L11; L21] U11        a panel, by the library, in fp32
    A = P A                              one gather and one scatter of the rows that move
    U12 = L11^-1 A12
    A22 = A22 - L21 U12                  operands in the low precision, sums in fp32

The columns of the next panel are updated first. The device then factors that panel while it updates the other columns.
Pivots stay on the device, so the host waits only at the end.
"""

from __future__ import annotations

from typing import Any

import torch

from mxpeak.kernels.contract.lu import EmulatedProducts
from mxpeak.kernels.torch.engine.device import LINE, NEAR, Device
from mxpeak.kernels.torch.lu import blas, cast
from mxpeak.layout.leading_dimension import leading_dimension

Tensor = Any

#: Columns of a panel (an estimate). C is read and written once per panel, so an update does width/4 flops per byte:
#: 512 columns keep tensor cores of 500 TFLOP/s busy at 4 TB/s. Wider panels move more work into FP32.
WIDTH = 512
#: Columns of a strip of moved rows: wide enough to hide launch overhead, and small compared with A.
STRIP = 16384


def factor_whole(A: Tensor) -> tuple[Tensor, Tensor]:
    """Factor P A = L U in place, for a contiguous column-major A.

    Return two tensors that stay on the device. The vector `rows` describes P: row i of L U is row rows[i] of A. The
    scalar `singular` is 1 + the index of the first column with a zero pivot, or 0 if all pivots are nonzero.
    """
    n = A.shape[0]
    pivots = torch.empty(n, dtype=torch.int32, device=A.device)
    singular = torch.empty((), dtype=torch.int32, device=A.device)
    with blas.by_cusolver(A):
        torch.linalg.lu_factor_ex(A, out=(A, pivots, singular))
    rows = torch.arange(n, device=A.device)
    targets, sources = moves(pivots, n)
    return rows.index_copy(0, targets, rows[sources]), singular


def factor_rounded(device: Device, A: Tensor, precision: str, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Factor a row-major fp32 (or complex64) A in place, with the operands of the updates rounded to `precision`.

    Returns the same two tensors as `factor_whole`.
    """
    lu = _Lu(device, A, precision, min(width, A.shape[0]))
    lu.run()
    return lu.rows, lu.singular()


def factor_emulated(
    device: Device, A: Tensor, emulation: EmulatedProducts, width: int = WIDTH
) -> tuple[Tensor, Tensor]:
    """Factor a row-major fp64 A in place, with emulated products in the updates.

    Returns the same two tensors as `factor_whole`.
    """
    lu = _Lu(device, A, "fp64", min(width, A.shape[0]), emulation)
    lu.run()
    return lu.rows, lu.singular()


def work_per_row(precision: str, is_complex: bool, width: int = WIDTH) -> int:
    """Return the bytes per row that `factor_rounded` needs in addition to A: operands, panel and moved rows.

    Complex operands are rounded into new tensors for each panel, in the low precision and in fp32.
    """
    itemsize = 8 if is_complex else 4
    operand = 3 * itemsize if is_complex else cast.OPERANDS[precision].itemsize
    return 2 * (operand * width + 2 * LINE) + 3 * itemsize * width


def moves(pivots: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """Combine row swaps into one move, A[targets] = A[sources], and return targets and sources.

    Swap k (k = 0, 1, ...) exchanges row k with row p_k >= k. `pivots` contains p_k + 1, and A has `height` rows.

    Only an earlier swap k' with p_k' = k can change row k before swap k. After the last such swap, row k has the
    entries that row k' had before swap k'. The same holds for row k', so the links from k to k' form a forest. Pointer
    doubling finds the root of each k, which is the original row of its entries. A target may occur several times,
    always with the same source.
    """
    count = len(pivots)
    k = torch.arange(count, device=pivots.device)
    # If the matrix contains NaN, a library may return any pivot. An index outside of A would stop the device.
    p = torch.maximum(pivots.to(torch.int64) - 1, k).clamp(max=height - 1)
    source = _last_before(p, k)
    for _ in range(count.bit_length()):
        source = source[source]  # content of row k before swap k
    order = torch.argsort(p, stable=True)
    again = p[order[1:]] == p[order[:-1]]
    before = torch.full_like(p, -1).index_copy(0, order[1:], torch.where(again, order[:-1], -1))
    is_last = torch.ones_like(p, dtype=torch.bool).index_copy(0, order[:-1], ~again)
    top = torch.where(before < 0, p, source[before.clamp(min=0)])
    leaves = is_last & (p >= count)  # the others end within the first rows, which `top` covers
    return torch.cat([k, torch.where(leaves, p, k)]), torch.cat([top, torch.where(leaves, source, top)])


def _last_before(p: Tensor, k: Tensor) -> Tensor:
    """Return, for each k, the last k' < k with p_k' = k. If there is no such k', return k itself."""
    count = len(p)
    target = torch.where((p < count) & (p != k), p, count)  # one extra slot for the others
    last = torch.full((count + 1,), -1, device=p.device).scatter_reduce(0, target, k, "amax")[:count]
    return torch.where(last < 0, k, last)


class _Lu:
    """One blocked factorization, with its row permutation and the buffers of the panel, the pivots and the operands."""

    def __init__(
        self, device: Device, A: Tensor, precision: str, width: int, emulation: EmulatedProducts | None = None
    ):
        n = A.shape[0]
        self.device, self.A, self.precision, self.width, self._emulation = device, A, precision, width, emulation
        self.rows = torch.arange(n, device=device.where)
        self._panel = device.empty(n * width, dtype=A.dtype)
        self._pivots = torch.empty(width, dtype=torch.int32, device=device.where)
        self._zeros = torch.zeros(-(-n // width), dtype=torch.int32, device=device.where)
        self._operands = None if emulation is not None or A.is_complex() else [self._operand(n) for _ in range(2)]

    def _operand(self, rows: int) -> Tensor:
        dtype = cast.OPERANDS[self.precision]
        buffer = self.device.empty(rows, leading_dimension(self.width, dtype.itemsize, LINE, NEAR), dtype=dtype)
        return buffer[:, : self.width]

    def run(self) -> None:
        """Factor A in place, panel by panel from left to right."""
        n = self.A.shape[0]
        self._factor_panel(0)
        for j0 in range(0, n, self.width):
            j1, j2 = min(j0 + self.width, n), min(j0 + 2 * self.width, n)
            self._move_rows(j0, j1)
            if j1 < n:
                self._eliminate(j0, j1, j2)

    def singular(self) -> Tensor:
        """Return 1 + the first column with a zero pivot, or 0 if all pivots are nonzero."""
        zeros = self._zeros.to(torch.int64)
        steps = torch.arange(len(zeros), device=zeros.device)
        first = torch.where(zeros > 0, zeros + steps * self.width, self.A.shape[0] + 1).amin()
        return torch.where(first > self.A.shape[0], 0, first)

    def _panel_of(self, j0: int) -> tuple[Tensor, Tensor]:
        """Return the contiguous column-major buffer of the panel that begins at column j0, and its pivot buffer."""
        m = self.A.shape[0] - j0
        jb = min(self.width, m)
        return self._panel[: m * jb].view(jb, m).T, self._pivots[:jb]

    def _factor_panel(self, j0: int) -> None:
        panel, pivots = self._panel_of(j0)
        self._copy(self.A[j0:, j0 : j0 + panel.shape[1]], panel)
        with blas.by_cusolver(panel):
            torch.linalg.lu_factor_ex(panel, out=(panel, pivots, self._zeros[j0 // self.width]))

    def _move_rows(self, j0: int, j1: int) -> None:
        """Apply the panel's row swaps to all columns of A, and copy the factored panel to columns j0 … j1-1."""
        panel, pivots = self._panel_of(j0)
        targets, sources = moves(pivots, panel.shape[0])
        for begin in range(0, self.A.shape[1], STRIP):
            part = self.A[j0:, begin : begin + STRIP]
            part.index_copy_(0, targets, part.index_select(0, sources))
        rows = self.rows[j0:]
        rows.index_copy_(0, targets, rows.index_select(0, sources))
        self._copy(panel, self.A[j0:, j0:j1])

    def _eliminate(self, j0: int, j1: int, j2: int) -> None:
        """Compute U12 and A22 -= L21 U12, and factor the next panel during the update."""
        A, device = self.A, self.device
        blas.solve_unit_lower(A[j0:j1, j0:j1], A[j0:j1, j1:])
        L, U = self._rounded(A[j1:, j0:j1], A[j0:j1, j1:])
        ahead = j2 - j1
        self._subtract(A[j1:, j1:j2], L, U[:, :ahead])
        with device.side_stream():
            self._factor_panel(j1)
        if j2 < A.shape[0]:
            self._subtract(A[j1:, j2:], L, U[:, ahead:])
        device.join()

    def _rounded(self, L21: Tensor, U12: Tensor) -> tuple[Tensor, Tensor]:
        """Return L21 and U12 rounded to the low precision, or unchanged for emulated products.

        Real matrices are stored in the order that GEMM reads: L21 row-major and U12 column-major. Complex matrices are
        new tensors, whose real and imaginary parts are rounded and stored in fp32.
        """
        if self._emulation is not None:
            return L21, U12
        if self._operands is None:
            return _rounded_parts(L21, self.precision), _rounded_parts(U12, self.precision)
        (m, k), columns = L21.shape, U12.shape[1]
        L, U = self._operands[0][:m, :k], self._operands[1][:columns, :k].T
        cast.cast(self.device, L21, L, self.precision)
        cast.cast(self.device, U12, U, self.precision)
        return L, U

    def _subtract(self, C: Tensor, L: Tensor, U: Tensor) -> None:
        if self._emulation is not None:
            self._emulation.subtract_product(C, L, U)
            return
        blas.subtract_product(self.device, C, L, U, "triton" if torch.version.hip else "library")

    def _copy(self, source: Tensor, target: Tensor) -> None:
        if source.is_complex():
            target.copy_(source)
        else:
            cast.copy(self.device, source, target)


def _rounded_parts(x: Tensor, precision: str) -> Tensor:
    """Return a copy of a complex tensor with real and imaginary parts rounded to `precision` and stored in fp32."""
    parts = cast.rounded(torch.view_as_real(x), precision).to(torch.float32)
    return torch.view_as_complex(parts.contiguous())


def rounded_operand(device: Device, x: Tensor, precision: str) -> Tensor:
    """Return x rounded to `precision`, as an operand of `blas.subtract_product`; complex numbers remain complex64."""
    if x.is_complex():
        return _rounded_parts(x, precision)
    operand = torch.empty(x.shape, dtype=cast.OPERANDS[precision], device=x.device)
    cast.cast(device, x, operand, precision)
    return operand
