"""Determine whether products of fp64 matrices are native or emulated with integers.

    X = A B                  entries that need all 53 bits
    Y = (A D) (D^-1 B)       D = diag(2^±E): every a_ik b_kj is the same number as in X

A native product adds the same numbers in the same order, so Y equals X bitwise, and both contain the rounding errors of
k sums. An emulated product represents each row of A and each column of B by integers with one common exponent. Y then
loses the small entries of each row, or uses another method, and differs from X. If an emulation keeps all bits of both,
Y equals X, but every entry of X is the correctly rounded sum. Sums of k rounded products are not.

    z_s = [1, ..., 1, 2^-s] [0, ..., 0, 1]^T       native: 2^-s; with integers of β bits: 0 from s = β on

Ozaki, Ogita, Oishi & Rump, Numer. Algorithms 59 (2012); Ozaki, Uchino & Imamura, arXiv 2504.08009 (2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import frexp, isfinite, ldexp
from random import Random

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.lu_schedule import lu_steps
from mxpeak.precision import precision

#: The exponent of D: far more than the bits of any emulation, and small enough that no entry overflows.
E = 200
#: The smallest inner dimension: with fewer terms, native sums may be rounded correctly by chance.
MIN_K = 64
#: The most bits that the last product can count, which is also its number of rows.
MAX_BITS = 128
#: Rows and columns at each end of a product whose entries are compared.
SAMPLED = 4
#: Steps of an LU whose products are repeated.
STEPS = 4


@dataclass(frozen=True, slots=True)
class Fp64Products:
    """The arithmetic of fp64 products.

    emulated   whether integers or narrower formats emulate the products
    bits       leading bits per row that an emulation keeps; None for native products, and if the number depends on
               the matrix
    """

    emulated: bool
    bits: int | None = None


def probe_products(kernels: Kernels, m: int, n: int, k: int) -> Fp64Products:
    """Determine the arithmetic of C = C - A B for an m×k matrix A and a k×n matrix B, by test products of this shape.

    Libraries select their method by the shape, so the shape must be that of the computation in question. Dimensions
    that are too small for the test products are increased.
    """
    m, n, k = max(m, MAX_BITS), max(n, 2 * SAMPLED), max(k, MIN_K)
    A, B, C = kernels.matrix(m, k), kernels.matrix(k, n), kernels.matrix(m, n)
    random = Random(53)
    _repeat(A, [[_full_number(random) for _ in range(k)] for _ in range(2 * SAMPLED)], kernels)
    _repeat(B.T, [[_full_number(random) for _ in range(k)] for _ in range(2 * SAMPLED)], kernels)
    if not products_are_emulated(kernels, C, A, B):
        return Fp64Products(emulated=False)
    return Fp64Products(emulated=True, bits=_kept_bits(kernels, C, A, B))


def products_are_emulated(kernels: Kernels, C: Matrix, A: Matrix, B: Matrix) -> bool | None:
    """Return whether the product of these matrices is emulated; C is overwritten, A and B are scaled and restored.

    The result is None if the product is not finite. The inner dimension must be at least `MIN_K`, and the entries
    must be between 2^-E and 2^E, or zero.
    """
    X = _negated_product(kernels, C, A, B)
    if not all(map(isfinite, X)):
        return None
    if not any(X):
        return None  # nothing was added
    _scale(A, B, 1)
    Y = _negated_product(kernels, C, A, B)
    _scale(A, B, -1)
    sums = _exact_sums(kernels, A, B)
    rounded_correctly = [float(total) for total, _ in sums] == X
    if X == Y or _negated_product(kernels, C, A, B) == X:
        return X != Y or rounded_correctly
    # The library adds in an order that changes from call to call, so only errors can be compared.
    bound = (A.shape[1] + 1) * Fraction(precision("fp64").u)
    native = all(isfinite(y) and abs(Fraction(y) - total) <= bound * size for y, (total, size) in zip(Y, sums))
    return rounded_correctly or not native


def sampled_steps(A: DistMatrix, kernels: Kernels) -> tuple[int, int]:
    """Return the number of updates that this rank repeated, and the number of those whose product was native.

    A has been factored and is overwritten. The products have the shapes of the updates in STEPS steps of the LU, and
    their operands are blocks of the factored matrix. A library that lacks workspace next to the matrix, or finds too
    many exponents in its rows, then multiplies as in the LU. Each rank repeats the steps whose diagonal block it owns.
    The last step is repeated first, because C overwrites the blocks of later steps.
    """
    steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
    repeated = native = 0
    for step in reversed(steps[:: max(1, len(steps) // STEPS)]):
        rest = slice(step.j1, None)
        (_, L21, U12), C = A.partition(step), A[rest, rest]
        if (A.grid.p, A.grid.q) != (step.p, step.q) or step.jb < MIN_K or 0 in C.shape:
            continue
        emulated = products_are_emulated(kernels, C, L21, U12)
        repeated += emulated is not None
        native += emulated is False
    return repeated, native


def _negated_product(kernels: Kernels, C: Matrix, A: Matrix, B: Matrix) -> list[float]:
    """Compute C = -A B and return the sampled entries of A B."""
    C[:] = 0.0
    kernels.subtract_product(C, A, B)
    rows, columns = (_ends(size) for size in C.shape)
    return [-float(entry) for i, j in product(rows, columns) for entry in kernels.host_array(C[i, j]).ravel()]


def _ends(size: int) -> tuple[slice, slice]:
    """Return slices of the first and the last indices below `size`."""
    return slice(0, SAMPLED), slice(max(0, size - SAMPLED), size)


def _scale(A: Matrix, B: Matrix, sign: int) -> None:
    """Compute A = A D and B = D^-1 B in place, or the inverse if `sign` is -1; powers of two cause no rounding."""
    for first, exponent in ((0, -sign * E), (1, sign * E)):
        A[:, first::2] *= ldexp(1.0, exponent)
        B[first::2] *= ldexp(1.0, -exponent)


def _exact_sums(kernels: Kernels, A: Matrix, B: Matrix) -> list[tuple[Fraction, Fraction]]:
    """Return Σ a_ik b_kj and Σ |a_ik b_kj| of the sampled entries, in the order of `_negated_product`."""
    m, n = A.shape[0], B.shape[1]
    rows = {i.start: [_integers(row) for row in kernels.host_array(A[i]).tolist()] for i in _ends(m)}
    columns = {j.start: [_integers(column) for column in kernels.host_array(B[:, j]).T.tolist()] for j in _ends(n)}
    corners = product(_ends(m), _ends(n))
    return [exact_sum(x, y) for i, j in corners for x in rows[i.start] for y in columns[j.start]]


def _integers(x: Sequence[float]) -> list[tuple[int, int]]:
    """Return each number as an integer and an exponent of two."""
    parts = map(frexp, x)
    return [(int(ldexp(fraction, 53)), exponent - 53) for fraction, exponent in parts]


def exact_sum(x: Sequence[tuple[int, int]], y: Sequence[tuple[int, int]]) -> tuple[Fraction, Fraction]:
    """Return Σ x_i y_i and Σ |x_i y_i| exactly, for numbers given as integers and exponents of two."""
    terms = [(a * b, e + f) for (a, e), (b, f) in zip(x, y) if a and b]
    least = min((exponent for _, exponent in terms), default=0)
    unit = Fraction(2) ** least
    shifted = [integer << (exponent - least) for integer, exponent in terms]
    return sum(shifted) * unit, sum(map(abs, shifted)) * unit


def _kept_bits(kernels: Kernels, C: Matrix, A: Matrix, B: Matrix) -> int | None:
    """Return the number of leading bits of a row that an emulation keeps, or None if it keeps every power of two."""
    _repeat(A, [[*[1.0] * (A.shape[1] - 1), ldexp(1.0, -s)] for s in range(MAX_BITS)], kernels)
    _repeat(B.T, [[*[0.0] * (B.shape[0] - 1), 1.0]], kernels)
    C[:] = 0.0
    kernels.subtract_product(C, A, B)
    entries = (-kernels.host_array(C[:MAX_BITS, :1]).ravel()).tolist()
    return next((s for s, entry in enumerate(entries) if entry != ldexp(1.0, -s)), None)


def _full_number(random: Random) -> float:
    """Return a number with a random sign between 1/2 and 1 whose last bit is 1, so that it needs 53 bits."""
    return random.choice((-1.0, 1.0)) * ldexp(random.getrandbits(51) * 2 + 2**52 + 1, -53)


def _repeat(A: Matrix, rows: Sequence[Sequence[float]], kernels: Kernels) -> None:
    """Fill A with copies of the given rows."""
    m = A.shape[0]
    filled = min(m, len(rows))
    A[:filled] = kernels.xp.asarray(rows)[:filled]
    while filled < m:
        count = min(filled, m - filled)
        A[filled : filled + count] = A[:count]
        filled += count
