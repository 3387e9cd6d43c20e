"""The check of a norm: its error against sums in doubled precision, made by other kernels, as SLATE scales it.

    error = |norm - reference| / reference,  over sqrt(m) for one, sqrt(n) for inf, sqrt(m·n) for fro, in units of eps

It passes up to 10; the largest entry of a real matrix must be exact.  eps is that of the entries' type, and of 16-bit
types that of fp32, in which others would sum them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from math import inf, isfinite, sqrt
from typing import Any

from mxpeak.bench.norms.config import NormsCase
from mxpeak.bench.norms.matrix import StoredMatrix, strips
from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract import Matrix
from mxpeak.kernels.contract.norms import ExtendedParts, NormKernels, Tile
from mxpeak.layout.index_map import IndexMap, consecutive
from mxpeak.layout.structure import DIAGONAL, Band, Structure
from mxpeak.precision import precision
from mxpeak.solvers.norms import diagonal_tiles, fp64, ones_before, whole
from mxpeak.spans import Spans

#: Scaled errors that pass, and those of the largest entry of a real matrix.
THRESHOLD, EXACT = 10.0, 0.0
#: Decimal digits of the reference, of which about 30 are right.
DIGITS = 40
#: Parts after each of which progress is told.
STRIPS = 50


@dataclass(frozen=True, slots=True)
class Reference:
    """The norms as they should be, and how many entries were read for them."""

    values: dict[str, Decimal]
    entries: int


def reference_norms(A: StoredMatrix, S: Structure, kernels: NormKernels, spans: Spans) -> Reference | None:
    """All norms in doubled precision.  Collective over the grid; None on all ranks but its first."""
    spans.start(f"checking {S.name} {S.m}x{S.n}", float(STRIPS))
    band = _parts(A, strips(A, STRIPS), S.band, kernels, spans)
    apart = _parts(A, [diagonal_tiles(A, S)], DIAGONAL, kernels, Spans())
    spans.finish()
    rows = _complete(_sum(band.by_row, apart.by_row, kernels), A.grid.row, A.grid.column, A.row_map, S.m, kernels)
    columns = _complete(band.by_column, A.grid.column, A.grid.row, A.column_map, S.n, kernels)
    parts = band.squares.tolist(), apart.squares.tolist()
    rest = A.comm.gather_objects((band.top, apart.top, *parts, band.entries + apart.entries))
    if rest is None:
        return None
    if S.mirrored:
        rows = columns = _sum(rows, columns, kernels)
    if S.ones:
        rows, columns = (_sum(x, _ones(x, S.diagonal, kernels), kernels) for x in (rows, columns))
    with localcontext(prec=DIGITS):
        squares = sum(((2 if S.mirrored else 1) * _first(part[2]) + _first(part[3]) for part in rest), Decimal(0))
        ones = S.diagonal if S.ones else 0
        values = {
            "max": Decimal(max([min(ones, 1), *(part[0] for part in rest), *(part[1] for part in rest)])),
            "one": _largest(columns),
            "inf": _largest(rows),
            "fro": (squares + ones).sqrt(),
        }
    return Reference(values, sum(part[4] for part in rest))


def scaled_error(case: NormsCase, kind: str, value: float, expected: Decimal) -> float:
    """The error of a norm as the check counts it; inf where the norm is not a number."""
    if not isfinite(value):
        return inf
    with localcontext(prec=DIGITS):
        error = abs(Decimal(value) - expected)
        relative = float(error / expected if expected else error)
    scale = {"max": 1.0, "one": sqrt(case.m), "inf": sqrt(case.n), "fro": sqrt(case.m * case.n)}[kind]
    return relative / scale / eps(case)


def eps(case: NormsCase) -> float:
    """The distance from 1 to the next number of the type, twice its unit roundoff."""
    return 2.0 * min(case.precision.u, precision("fp32").u)


def threshold(case: NormsCase, kind: str) -> float:
    """Up to which a scaled error passes."""
    return EXACT if kind == "max" and not case.complex else THRESHOLD


def _parts(
    A: StoredMatrix, tiles: Sequence[Sequence[Tile]], band: Band, kernels: NormKernels, spans: Spans
) -> ExtendedParts:
    """The sums of this rank's tiles, strip by strip."""
    found = []
    for step, strip in enumerate(tiles, start=1):
        found.append(kernels.extended_pass(strip, band, A.rows.local_size, A.cols.local_size))
        spans.step(step, len(tiles), STRIPS * step / len(tiles))
    found = found or [kernels.extended_pass([], band, A.rows.local_size, A.cols.local_size)]
    return ExtendedParts(
        max(part.top for part in found),
        kernels.paired_sum([part.squares for part in found]),
        kernels.paired_sum([part.by_row for part in found]),
        kernels.paired_sum([part.by_column for part in found]),
        sum(part.entries for part in found),
    )


def _complete(
    mine: Matrix, across: Communicator, along: Communicator, index_map: IndexMap, size: int, kernels: NormKernels
) -> Any:
    """Sums over the ranks of `across`, at their global indices among those of `along`; on the grid's first rank.

    They travel as lists of Python's numbers: ranks have devices of their own.
    """
    xp = kernels.xp
    terms = across.gather_objects(mine.tolist())
    total = terms and kernels.paired_sum([fp64(rows, xp) for rows in terms]).tolist()
    parts = along.gather_objects(terms and (index_map, total))
    if terms is None or parts is None:
        return None
    return kernels.paired_sum([whole(fp64(rows, xp), index_map, size, xp) for index_map, rows in parts])


def _sum(x: Matrix, y: Matrix, kernels: NormKernels) -> Matrix:
    return kernels.paired_sum([x, y])


def _ones(like: Matrix, count: int, kernels: NormKernels) -> Matrix:
    """1 in the first `count` columns."""
    return ones_before(count, consecutive(like.shape[1]), kernels.xp)[None, :]


def _largest(sums: Matrix) -> Decimal:
    return _number(sums[:, sums[0].argmax()])


def _first(rows: Sequence[Sequence[float]]) -> Decimal:
    return _number(row[0] for row in rows)


def _number(pair: Iterable[Any]) -> Decimal:
    """High and low as one number."""
    return sum((Decimal(float(x)) for x in pair), Decimal(0))
