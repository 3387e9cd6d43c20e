"""Describe the differences between a GPU's libraries and a CPU's, and the work of an operation."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def _unpivoted(A: torch.Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Compute an LU factorization without pivoting, which torch has on GPUs only."""
    if pivot:
        return aten.linalg_lu_factor_ex.default(A, pivot=True, check_errors=check_errors)
    LU, n = A.clone(), A.shape[0]
    info = torch.zeros((), dtype=torch.int32)
    for j in range(n):
        if LU[j, j] == 0:
            info.fill_(j + 1 if not int(info) else int(info))
            continue
        LU[j + 1 :, j] /= LU[j, j]
        LU[j + 1 :, j + 1 :].addr_(LU[j + 1 :, j], LU[j, j + 1 :], alpha=-1)
    return LU, torch.arange(1, n + 1, dtype=torch.int32), info


def _wide(
    C: torch.Tensor, A: torch.Tensor, B: torch.Tensor, out_dtype: Any, *, beta: float = 1, alpha: float = 1, out: Any
) -> torch.Tensor:
    """Compute a product of 16-bit numbers with sums in fp32."""
    return torch.addmm(C, A.to(out_dtype), B.to(out_dtype), beta=beta, alpha=alpha, out=out)


#: Operations that torch lacks on a CPU.
MISSING: dict[Any, Any] = {aten.linalg_lu_factor_ex.default: _unpivoted, aten.addmm.dtype_out: _wide}
PRODUCTS = {"addmm": (1, 2), "mm": (0, 1), "bmm": (0, 1), "addmv": (1, 2), "mv": (0, 1)}
#: Precisions by type; the type of the operands decides the rate.
NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
}


def work(func: Any, args: Any, kwargs: Any) -> tuple[str, float, str, tuple[int, ...]]:
    """Return an operation's kind, its flops, the precision of its operands, and its sizes (`log.Op`)."""
    name = getattr(getattr(func, "_schema", None), "name", "").removeprefix("aten::").rstrip("_")
    if name in PRODUCTS:
        A, B = (args[i] for i in PRODUCTS[name])
        columns = B.shape[-1] if B.dim() > 1 else 1
        return (
            "gemm",
            2.0 * A.numel() * columns,
            NAMES.get(A.dtype, "fp64"),
            (A.numel() // A.shape[-1], columns, A.shape[-1]),
        )
    if name == "linalg_solve_triangular":
        T, B = args[0], args[1]
        jb = T.shape[-1]
        return "trsm", float(jb * B.numel()), NAMES.get(T.dtype, "fp64"), (jb, jb, B.numel() // jb)
    if name.startswith("linalg_lu_factor"):
        A = args[0]
        m, n = A.shape
        return "factor", float(m * n * n - n**3 / 3), NAMES.get(A.dtype, "fp64"), (m, n, n)
    return "kernel", 0.0, "", ()
