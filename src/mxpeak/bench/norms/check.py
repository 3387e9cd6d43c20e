"""Compare norms with sums in double-double arithmetic by other kernels, using SLATE's scaled error.

    error = |norm - reference| / reference,  over sqrt(m) for one, sqrt(n) for inf, sqrt(m·n) for fro, in units of eps

The norm of a row or column adds as many terms as the vector has entries. The reference is computed from A, so that the
norm of a transposed A is compared with sums along the other dimension. Errors up to 10 pass, but the maximum of a real
matrix must be exact. eps is the machine epsilon of the entries' type. For 16-bit types, it is that of fp32, because
other libraries add 16-bit entries in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from itertools import chain, groupby
from math import inf, isfinite, sqrt
from typing import Any

from mxpeak.bench.norms.config import NormsCase
from mxpeak.bench.norms.matrix import NormsMatrix, StoredMatrix, strips
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.norms import VECTOR_KINDS
from mxpeak.kernels.contract import Matrix
from mxpeak.kernels.contract.norms import ExtendedParts, NormKernels, Tile
from mxpeak.layout.index_map import IndexMap, consecutive
from mxpeak.layout.structure import DIAGONAL, Band, Structure
from mxpeak.precision import precision
from mxpeak.solvers.norms import diagonal_tiles, fp64, ones_before, whole
from mxpeak.spans import Spans

#: The largest scaled error that passes, and that of the maximum of a real matrix.
THRESHOLD, EXACT = 10.0, 0.0
#: Decimal digits of the reference, about 30 of which are correct.
DIGITS = 40
#: Number of parts of the check. Progress is reported after each part.
STRIPS = 50


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference norms of A, the number of entries from which they were computed, and the norms of its vectors.

    vectors     by `rows` or `columns` and by kind, only of those that a case needs
    """

    values: dict[str, Decimal]
    entries: int
    vectors: dict[str, dict[str, list[Decimal]]] = field(default_factory=dict)

    def expected(self, case: NormsCase, kind: str) -> Decimal:
        """Return the reference of a norm of op(A)."""
        turned = {"one": "inf", "inf": "one"} if case.transposed else {}
        return self.values[turned.get(kind, kind)]

    def expected_vectors(self, case: NormsCase, kind: str) -> list[Decimal]:
        """Return the reference of the norm of every row or column of op(A)."""
        return self.vectors[case.vectors_of_A][kind]


def reference_norms(A: NormsMatrix, S: Structure, kernels: NormKernels, spans: Spans) -> Reference | None:
    """Compute all norms in double-double arithmetic; return them on the first rank, and None on the other ranks.

    Collective over the grid.
    """
    spans.start(f"checking {S.name} {S.m}x{S.n}", float(STRIPS))
    band = _parts(A, strips(A, STRIPS), S.band, kernels, spans)
    diagonal = _parts(A, [diagonal_tiles(A, S)], DIAGONAL, kernels, Spans())
    spans.finish()
    of_rows, of_columns = _groups(A)
    rows = _complete(_sum(band.by_row, diagonal.by_row, kernels), *of_rows, A.row_map, S.m, kernels)
    columns = _complete(band.by_column, *of_columns, A.column_map, S.n, kernels)
    squares = band.squares.tolist(), diagonal.squares.tolist()
    parts = A.comm.gather_objects((band.top, diagonal.top, *squares, band.entries + diagonal.entries))
    if parts is None:
        return None
    if S.mirrored:
        rows = columns = _sum(rows, columns, kernels)
    if S.ones:
        rows, columns = (_sum(x, _ones(x, S.diagonal, kernels), kernels) for x in (rows, columns))
    with localcontext(prec=DIGITS):
        total = sum(((2 if S.mirrored else 1) * _first(part[2]) + _first(part[3]) for part in parts), Decimal(0))
        ones = S.diagonal if S.ones else 0
        values = {
            "max": Decimal(max([min(ones, 1), *(part[0] for part in parts), *(part[1] for part in parts)])),
            "one": _largest(columns),
            "inf": _largest(rows),
            "fro": (total + ones).sqrt(),
        }
    return Reference(values, sum(part[4] for part in parts))


def reference_vectors(
    A: NormsMatrix, S: Structure, by: str, kernels: NormKernels, spans: Spans
) -> dict[str, list[Decimal]] | None:
    """Return the norms of every row or column by kind on the first rank, and None on the other ranks. Collective.

    Each vector of a rank is summed in double-double arithmetic by itself. The first rank adds the parts of the ranks.
    """
    spans.start(f"checking {by} of {S.name} {S.m}x{S.n}", float(STRIPS))
    A, S = (A, S) if by == "columns" else (A.T, S.transposed)
    parts = _column_parts(A.tiles, A.column_map, S.band, kernels, spans)
    if S.mirrored:
        parts += _column_parts(A.T.tiles, A.row_map, S.transposed.band, kernels, Spans())
        parts += _column_parts(diagonal_tiles(A, S), A.column_map, DIAGONAL, kernels, Spans())
    spans.finish()
    ranks = A.comm.gather_objects(parts)
    if ranks is None:
        return None
    ones = [Decimal(1 if S.ones and j < S.diagonal else 0) for j in range(S.n)]
    norms = {kind: list(ones) for kind in VECTOR_KINDS}
    with localcontext(prec=DIGITS):
        for j, top, total, squares in chain.from_iterable(ranks):
            norms["max"][j] = max(norms["max"][j], Decimal(top))
            norms["one"][j] += total
            norms["fro"][j] += squares
        norms["fro"] = [square.sqrt() for square in norms["fro"]]
    return norms


def _column_parts(
    tiles: Sequence[Tile], columns: IndexMap, band: Band, kernels: NormKernels, spans: Spans
) -> list[tuple[int, float, Decimal, Decimal]]:
    """Return the global index, the maximum, the sum and the sum of squares of each of this rank's columns of tiles."""
    parts, done = [], 0
    for _, of_columns in groupby(sorted(tiles, key=lambda tile: tile.col0), lambda tile: tile.col0):
        strip = list(of_columns)
        for b in range(strip[0].A.shape[1]):
            ig = int(strip[0].cols.to_global(b))
            column = [Tile(tile.A[:, b : b + 1], tile.rows, consecutive(1, ig), tile.row0, 0) for tile in strip]
            rows = max(tile.row0 + tile.A.shape[0] for tile in strip)
            extended = kernels.extended_pass(column, band, rows, 1)
            with localcontext(prec=DIGITS):
                sums, squares = _number(extended.by_column[:, 0]), _first(extended.squares.tolist())
            parts.append((ig, extended.top, sums, squares))
            done += 1
            spans.step(done, columns.size, STRIPS * done / columns.size)
    return parts


def scaled_error(case: NormsCase, kind: str, value: float, expected: Decimal) -> float:
    """Return the scaled error of a norm of this kind, in units of eps, or inf if the norm is not finite."""
    if not isfinite(value):
        return inf
    with localcontext(prec=DIGITS):
        error = abs(Decimal(value) - expected)
        relative = float(error / expected if expected else error)
    return relative / sqrt(case.terms[kind]) / eps(case)


def eps(case: NormsCase) -> float:
    """Return the machine epsilon (twice the unit roundoff) of the entries' type, or that of fp32 for 16-bit types."""
    return 2.0 * min(case.precision.u, precision("fp32").u)


def threshold(case: NormsCase, kind: str) -> float:
    """Return the largest scaled error that passes: 0 for the maximum of a real matrix, otherwise 10."""
    return EXACT if kind == "max" and not case.complex else THRESHOLD


def _parts(
    A: NormsMatrix, tiles: Sequence[Sequence[Tile]], band: Band, kernels: NormKernels, spans: Spans
) -> ExtendedParts:
    """Compute the double-double sums of this rank's tiles, and report the progress after each strip of tiles."""
    parts = []
    for step, strip in enumerate(tiles, start=1):
        parts.append(kernels.extended_pass(strip, band, A.row_map.size, A.column_map.size))
        spans.step(step, len(tiles), STRIPS * step / len(tiles))
    parts = parts or [kernels.extended_pass([], band, A.row_map.size, A.column_map.size)]
    return ExtendedParts(
        max(part.top for part in parts),
        kernels.paired_sum([part.squares for part in parts]),
        kernels.paired_sum([part.by_row for part in parts]),
        kernels.paired_sum([part.by_column for part in parts]),
        sum(part.entries for part in parts),
    )


def _groups(A: NormsMatrix) -> tuple[tuple[Communicator, Communicator], tuple[Communicator, Communicator]]:
    """Return the ranks over which row sums are added and then assembled, and the same for column sums."""
    if isinstance(A, StoredMatrix):
        return (A.grid.row, A.grid.column), (A.grid.column, A.grid.row)
    return (A.comm, Solo()), (A.comm, Solo())


def _complete(
    sums: Matrix, across: Communicator, along: Communicator, index_map: IndexMap, size: int, kernels: NormKernels
) -> Any:
    """Add sums over the ranks of `across`, and assemble the results over the ranks of `along`.

    The result is on the first rank of the grid. The messages are lists of Python numbers, because each rank has its
    own device.
    """
    xp = kernels.xp
    terms = across.gather_objects(sums.tolist())
    total = terms and kernels.paired_sum([fp64(rows, xp) for rows in terms]).tolist()
    parts = along.gather_objects(terms and (index_map, total))
    if terms is None or parts is None:
        return None
    return kernels.paired_sum([whole(fp64(rows, xp), index_map, size, xp) for index_map, rows in parts])


def _sum(x: Matrix, y: Matrix, kernels: NormKernels) -> Matrix:
    return kernels.paired_sum([x, y])


def _ones(like: Matrix, count: int, kernels: NormKernels) -> Matrix:
    """Return a row with 1 in the first `count` columns, and 0 otherwise."""
    return ones_before(count, consecutive(like.shape[1]), kernels.xp)[None, :]


def _largest(sums: Matrix) -> Decimal:
    return _number(sums[:, sums[0].argmax()])


def _first(rows: Sequence[Sequence[float]]) -> Decimal:
    return _number(row[0] for row in rows)


def _number(pair: Iterable[Any]) -> Decimal:
    """Return the sum of a double-double pair as a Decimal."""
    return sum((Decimal(float(x)) for x in pair), Decimal(0))
