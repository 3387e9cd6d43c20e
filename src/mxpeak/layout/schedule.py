"""The steps of a blocked LU as data: shared by the solvers and by whatever only wants to know their order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LuStep:
    """Step k eliminates columns j0 : j0+jb; its diagonal block lies on process (p, q)."""

    k: int
    j0: int
    jb: int
    p: int
    q: int

    @property
    def j1(self) -> int:
        """The first column of the trailing matrix."""
        return self.j0 + self.jb


def lu_steps(n: int, nb: int, P: int, Q: int) -> list[LuStep]:
    """The ceil(n / NB) steps of an LU of order n on a P×Q grid; the last one may be narrower than NB."""
    return [LuStep(k, j0, min(nb, n - j0), k % P, k % Q) for k, j0 in enumerate(range(0, n, nb))]


def looks_ahead(depth: int, ranks: int, *, background: bool) -> bool:
    """Whether a step's update of HPL-MxP goes on while the next panels are made and sent.

    Where nothing can go on meanwhile, one product is quicker than the three that look-ahead makes of it.
    """
    return depth > 0 and (ranks > 1 or background)


def split_columns(columns: int, fraction: float, nb: int) -> int:
    """n2, the local columns of the right section of the split update (rocHPL §III-C), of `columns` in all.

    n1 = columns - n2 is a multiple of NB; n2 stays fixed while n1 shrinks with every panel, and once n1 is used
    up the plain update takes over.
    """
    if fraction == 0.0:
        return 0
    left_blocks = round((1.0 - fraction) * columns / nb)
    return max(0, columns - left_blocks * nb)
