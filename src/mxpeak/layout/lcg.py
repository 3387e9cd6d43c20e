"""HPL's random numbers as a pure function of the position: a 64-bit linear congruential generator with jumps.

X(0) is the seed and X(d) = a·X(d-1) + c mod 2^64. A jump by k steps has the same form, X(d+k) = A_k·X(d) + C_k. Any
number therefore takes one multiply-add per bit of d, and a whole block takes one per entry. Entry (i, j) of the N-row
augmented matrix is draw 1 + i + j·N, and its value is 1/2 - X/2^64 (Netlib HPL 2.3, HPL_pdmatgen, HPL_rand).
"""

from __future__ import annotations

A1 = 6364136223846793005
C1 = 1
MASK = 2**64 - 1


def _squares() -> list[tuple[int, int]]:
    """Return (A_k, C_k) for k = 1, 2, 4, …, 2^63, where X(d+k) = A_k·X(d) + C_k.

    The pairs are computed by repeated squaring: (A, C)∘(A, C) = (A², A·C + C).
    """
    jumps = [(A1, C1)]
    for _ in range(63):
        A, C = jumps[-1]
        jumps.append((A * A & MASK, (A * C + C) & MASK))
    return jumps


_SQUARES = _squares()


def state(seed: int, draw: int) -> int:
    """Return the generator state X(draw), with X(0) = seed."""
    x, bits, b = seed & MASK, draw & MASK, 0
    while bits:
        if bits & 1:
            A, C = _SQUARES[b]
            x = (A * x + C) & MASK
        bits >>= 1
        b += 1
    return x


def jump(steps: int) -> tuple[int, int]:
    """Return (A_k, C_k) for k = steps, where X(d+k) = A_k·X(d) + C_k.

    C_k is the state k steps after the state 0, and A_k + C_k is the state k steps after the state 1.
    """
    C = state(0, steps)
    return (state(1, steps) - C) & MASK, C


def states(seed: int, draw: int, count: int) -> list[int]:
    """Return `count` successive states, X(draw) to X(draw + count - 1)."""
    x = state(seed, draw)
    draws = [x]
    for _ in range(count - 1):
        x = (A1 * x + C1) & MASK
        draws.append(x)
    return draws


def value(x: int) -> float:
    """Return HPL's random number in (-1/2, 1/2] for the state x, which is first rounded to a double, as in HPL."""
    return 0.5 - float(x) * 2.0**-64
