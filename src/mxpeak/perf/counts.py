"""Official counts of flops and bytes, with their sources. All rates are based on these counts."""

from __future__ import annotations

import math
from collections.abc import Callable

from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.block_cyclic import numroc
from mxpeak.layout.lu_schedule import looks_ahead

FP64_BYTES = 8


def hpl_flops(n: int) -> float:
    """Return the flops that HPL credits for order n, independently of the executed flops: 2/3 n^3 + 3/2 n^2.

    Source: Netlib HPL 2.3, testing/ptest/HPL_pdtest.c. An LU and two triangular solves with n^2 flops each have 2/3
    n^3 + 3/2 n^2 - n/6 flops; HPL omits the last term.
    """
    return n * n * (2.0 / 3.0 * n + 1.5)


def lu_flops(n: int) -> float:
    """Return the flops of an LU factorization of order n: 2/3 n^3 - 1/2 n^2 - 1/6 n."""
    return lu_flops_done(n, 0)


def lu_flops_done(n: int, remaining: int) -> float:
    """Return the completed flops of an LU of order n when r = `remaining` columns remain.

    The count is 2/3 (n^3 - r^3) - 1/2 (n^2 - r^2) - 1/6 (n - r), the flops of order n minus those of order r. Column k
    of n needs n-k divisions and 2 (n-k)^2 flops of update. rocHPL's progress table uses the same count.
    """
    r = remaining
    return (4 * (n**3 - r**3) - 3 * (n**2 - r**2) - (n - r)) / 6.0  # one rounding: 0, not negative, for n = 1


def hpl_memory_bytes(n: int, nb: int, P: int, Q: int, panels: int = 2) -> dict[str, int]:
    """Return the bytes of an HPL run over all P x Q ranks, each counted like the rank with the largest part.

    If m x k is the largest local part of the n x (n+1) matrix, every rank has, in fp64,
      the matrix   m k,
      panels       2 m nb          (the current panel and that of look-ahead; 3 m nb if FACT of the latter overlaps
                                    UPDATE of the left section, which still reads the previous panel),
      row swaps    3 nb k          (rows to send, rows received, and U).

    Single nb x nb blocks and the padding of columns are omitted. They are a few thousandths of the total for large n.
    """
    m, k = numroc(n, nb, 0, P), numroc(n + 1, nb, 0, Q)
    matrix = P * Q * FP64_BYTES * m * k
    buffers = P * Q * FP64_BYTES * (panels * m * nb + 3 * nb * k)
    return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}


#: Function of n, nb, P and Q that returns the bytes of a run over all ranks, in parts and in "total".
Footprint = Callable[[int, int, int, int], dict[str, int]]


def mxp_memory_bytes(
    n: int,
    nb: int,
    P: int,
    Q: int,
    stored: int = 4,
    operand: int = 4,
    *,
    inverses: bool = False,
    background: bool = False,
    depth: int = 1,
) -> dict[str, int]:
    """Return the bytes of an HPL-MxP run over all P×Q ranks, each counted like the rank with the largest part.

    If m×k is the largest local part of the n×n matrix, every rank has
      the matrix   stored·m·k,
      panels       operand·s·(m + k)·nb     (L_row and U_col of s steps; s = 2 with look-ahead, otherwise 1; a single
                                             process uses look-ahead only with `background`),
      vectors      8·(64·(m + k) + 2·n)     (fp64: Krylov vectors, right-hand side, diagonal; two vectors of length n),
      inverses     16·nb²·d                 (of the rank's d diagonal blocks of L and U, if they are kept).
    """
    m, k = numroc(n, nb, 0, P), numroc(n, nb, 0, Q)
    matrix = P * Q * stored * m * k
    sets = 1 + looks_ahead(depth, P * Q, background=background)
    buffers = P * Q * (operand * sets * (m + k) * nb + FP64_BYTES * (64 * (m + k) + 2 * n))
    if inverses:
        d = -(-n // (nb * math.lcm(P, Q)))
        buffers += P * Q * 2 * FP64_BYTES * nb**2 * d
    return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}


def largest_n(budget_bytes: int, nb: int, P: int = 1, Q: int = 1, footprint: Footprint = hpl_memory_bytes) -> int:
    """Return the largest order n whose run fits into `budget_bytes` over all ranks.

    n is a multiple of nb, unless n < nb. It is about sqrt(budget / bytes per entry), minus the buffers of the
    footprint.
    """
    if nb < 1:
        raise UsageError(f"--nb {nb} is less than 1; use, for example, --nb 192")

    def need(n: int) -> int:
        return footprint(n, nb, P, Q)["total"]

    bound = math.isqrt(max(0, budget_bytes))  # an entry has at least one byte
    blocks = _largest(bound // nb, lambda b: need(b * nb), budget_bytes)
    if blocks:
        return blocks * nb
    n = _largest(nb - 1, need, budget_bytes)
    if not n:
        raise ResourceError(
            f"no matrix fits, because even N = 1 with NB = {nb} on {P}x{Q} ranks needs {need(1)} bytes for "
            f"buffers and matrix, but the budget is {budget_bytes} bytes; use a larger --mem or a smaller "
            "--nb"
        )
    return n


def _largest(bound: int, need: Callable[[int], int], budget: int) -> int:
    # Bisection for the largest k in [0, bound] that fits. The required memory never decreases with k.
    low, high = 0, bound
    while low < high:
        middle = (low + high + 1) // 2
        if need(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
