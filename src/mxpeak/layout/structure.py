"""Describe triangles, bands and symmetries of a matrix as integers: the entries to read, and the values of the others.

Every structure is a band, -below <= j - i <= above, with one of three rules for the entries outside of the band:

    general          all entries                        trapezoid, triangular   j <= i (lower) or j >= i (upper), else 0
    band             -kl <= j - i <= ku, else 0         hessenberg              j >= i - 1, else 0
    symmetric        one triangle; a_ji = a_ij defines the other triangle
    hermitian        the same in absolute values; only the real part of the diagonal is read
    hermitian-band   one triangle of a band of kl = ku

Entries outside of the band are never read and may have any value.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.configs.norms import DIAGS, STRUCTURES, UPLOS
from mxpeak.errors import UsageError

#: The structures that accept each option.
WITH_UPLO, WITH_DIAG, WITH_WIDTHS = (
    tuple(name for name, options in STRUCTURES.items() if option in options) for option in ("uplo", "diag", "kl")
)
SQUARE = ("triangular", "symmetric", "hermitian", "hermitian-band")
#: Width of an unbounded band.
ENDLESS = 2**62


@dataclass(frozen=True, slots=True)
class Band:
    """The entries of a matrix with -below <= j - i <= above; a negative `below` or `above` excludes the diagonal."""

    below: int = ENDLESS
    above: int = ENDLESS

    @property
    def transposed(self) -> Band:
        """Return the band of the transposed matrix, which exchanges `below` and `above`."""
        return Band(self.above, self.below)

    def contains(self, i: int, j: int) -> bool:
        """Return whether the band contains entry (i, j)."""
        return -self.below <= j - i <= self.above

    def entries(self, m: int, n: int) -> int:
        """Return the number of entries of the band in an m×n matrix."""
        return max(0, _under(m, n, self.above) - _under(m, n, -self.below - 1))


#: The band that contains only the diagonal, and the band that contains all entries.
DIAGONAL, WHOLE = Band(0, 0), Band()


def _under(m: int, n: int, above: int) -> int:
    """Return the number of entries of an m×n matrix with j - i <= above, Σ_i min(n, max(0, i + above + 1))."""
    begin = max(0, -above)  # the first row with such an entry
    full = min(m, max(begin, n - above - 1))  # the first row with n such entries
    ragged = max(0, full - begin)
    return ragged * (begin + above + 1) + ragged * (ragged - 1) // 2 + max(0, m - max(full, begin)) * n


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of an m×n matrix: the entries that are read, and how they define all other entries.

    band       the entries that are read; if `mirrored`, each of them also defines a_ji
    mirrored   whether a_ji = a_ij in absolute value; the diagonal is then read separately and counted once
    ones       whether the diagonal is 1 and not read
    real       whether only the real part of the diagonal is read
    """

    name: str
    m: int
    n: int
    band: Band
    mirrored: bool = False
    ones: bool = False
    real: bool = False

    @property
    def transposed(self) -> Structure:
        """Return the structure of the transposed matrix."""
        return Structure(self.name, self.n, self.m, self.band.transposed, self.mirrored, self.ones, self.real)

    def reads(self, i: int, j: int) -> bool:
        """Return whether a norm reads entry (i, j)."""
        return self.band.contains(i, j) or (self.mirrored and i == j)

    @property
    def diagonal(self) -> int:
        """Return the number of diagonal entries, min(m, n)."""
        return min(self.m, self.n)

    @property
    def entries(self) -> int:
        """Return the number of entries that are read."""
        return self.band.entries(self.m, self.n) + (self.diagonal if self.mirrored else 0)


def structure(
    name: str,
    m: int,
    n: int,
    *,
    uplo: str | None = None,
    diag: str | None = None,
    kl: int | None = None,
    ku: int | None = None,
) -> Structure:
    """Return the named structure of an m×n matrix; the default of `uplo` is lower, and that of `diag` is nonunit.

    kl and ku are the numbers of diagonals below and above the main diagonal. Raises UsageError for an invalid
    combination.
    """
    _check(name, m, n, uplo, diag, kl, ku)
    lower, unit = uplo != "upper", diag == "unit"
    if name == "general":
        return Structure(name, m, n, WHOLE)
    if name == "hessenberg":
        return Structure(name, m, n, Band(1, ENDLESS))
    if name == "band":
        assert kl is not None
        assert ku is not None
        return Structure(name, m, n, Band(kl, ku))
    if name in WITH_DIAG:
        edge = -1 if unit else 0  # a unit diagonal is not read
        return Structure(name, m, n, Band(ENDLESS, edge) if lower else Band(edge, ENDLESS), ones=unit)
    width = ENDLESS if name != "hermitian-band" else kl if kl is not None else ku
    assert width is not None
    strict = Band(width, -1) if lower else Band(-1, width)
    return Structure(name, m, n, strict, mirrored=True, real=name != "symmetric")


def _check(name: str, m: int, n: int, uplo: str | None, diag: str | None, kl: int | None, ku: int | None) -> None:
    if name not in STRUCTURES:
        raise UsageError(f"unknown structure {name!r}; use one of {', '.join(STRUCTURES)}")
    for option, value, choices, users in (("uplo", uplo, UPLOS, WITH_UPLO), ("diag", diag, DIAGS, WITH_DIAG)):
        if value is not None and value not in choices:
            raise UsageError(f"unknown {option} {value!r}; use one of {', '.join(choices)}")
        if value is not None and name not in users:
            raise UsageError(
                f"structure {name!r} does not use {option}; remove {option}, or use one of {', '.join(users)}"
            )
    if name in SQUARE and m != n:
        instead = "trapezoid" if name == "triangular" else "band" if name == "hermitian-band" else "general"
        raise UsageError(
            f"a {name} matrix must be square, but this matrix is {m}x{n}; use structure {instead!r}, which "
            "allows any shape"
        )
    for option, width in (("kl", kl), ("ku", ku)):
        if width is not None and name not in WITH_WIDTHS:
            raise UsageError(
                f"structure {name!r} does not use {option}; remove {option}, or use band or hermitian-band"
            )
        if width is not None and width < 0:
            raise UsageError(f"{option} = {width} is negative; use 0 or more diagonals")
    if name == "band" and (kl is None or ku is None):
        raise UsageError("structure 'band' needs the numbers of diagonals below and above the main one; add kl and ku")
    if name == "hermitian-band" and kl is None and ku is None:
        raise UsageError(
            "structure 'hermitian-band' needs the number of diagonals on each side of the main one; add kl or ku"
        )
    if name == "hermitian-band" and None not in (kl, ku) and kl != ku:
        raise UsageError(
            f"a hermitian band has the same number of diagonals below and above the main one, but kl = {kl} and "
            f"ku = {ku}; use kl = ku"
        )
