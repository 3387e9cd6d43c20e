"""HPL's random numbers as a pure function of the position: a 64-bit linear congruential generator with jumps.

X(0) is the seed and X(d) = a·X(d-1) + c mod 2^64.  k steps at once are again of that form, X(d+k) = A_k·X(d) + C_k, so
any number is reached in O(log d), and a whole block with one multiply-add an entry.  Entry (i, j) of the N-row
augmented matrix is draw 1 + i + j·N, and its value 1/2 - X/2^64 (Netlib HPL 2.3, HPL_pdmatgen, HPL_rand).
"""

from __future__ import annotations

A1 = 6364136223846793005
C1 = 1
MASK = 2**64 - 1


def jump(steps: int) -> tuple[int, int]:
    """(A_k, C_k) for k = steps, by repeated squaring: (A, C)∘(A, C) = (A², A·C + C)."""
    A, C = 1, 0
    a, c = A1, C1
    while steps:
        if steps & 1:
            A, C = a * A & MASK, (a * C + c) & MASK
        a, c = a * a & MASK, (a * c + c) & MASK
        steps >>= 1
    return A, C


def state(seed: int, draw: int) -> int:
    """X(draw)."""
    A, C = jump(draw)
    return (A * seed + C) & MASK


def states(seed: int, draw: int, count: int) -> list[int]:
    """X(draw), X(draw+1), …: so many in a row."""
    x = state(seed, draw)
    found = [x]
    for _ in range(count - 1):
        x = (A1 * x + C1) & MASK
        found.append(x)
    return found


def value(x: int) -> float:
    """The number in (-1/2, 1/2] that belongs to state x; x is first rounded to a double, as HPL's sums round it."""
    return 0.5 - float(x) * 2.0**-64
