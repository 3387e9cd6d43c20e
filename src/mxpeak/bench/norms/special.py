"""Check that NaN and infinity reach a norm from any entry that it reads, and from no other entry.

Each check sets one or two entries of A to NaN or infinity, computes the norm by the timed code, and restores A:

    an entry that is read is NaN          the norm is NaN
    otherwise, one that is read is Inf    the norm is infinite
    neither                               the norm is that of the unchanged matrix, within the threshold of its error

The norm of a row or column depends on the entries of this vector alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan, nan
from typing import Any

from mxpeak.bench.norms.check import Reference, scaled_error, threshold
from mxpeak.bench.norms.config import NormsCase
from mxpeak.bench.norms.matrix import NormsMatrix
from mxpeak.layout.structure import Structure

#: Number of random positions that are tried to find one that the norm reads, and one that it does not read.
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Special:
    """An entry (i, j) of A that becomes NaN or infinite."""

    i: int
    j: int
    value: float

    def record(self) -> dict[str, Any]:
        """Return the entry for the result file, which contains no NaN."""
        return {"value": word(self.value), "i": self.i, "j": self.j}


def placements(S: Structure, seed: int) -> list[tuple[Special, ...]]:
    """Return the entries of each check: corners, diagonal and random positions, each with NaN, with Inf and with both.

    Of the random positions, the norm reads one and does not read the other, if there are such entries.
    """
    draw, middle = random.Random(seed), S.diagonal // 2
    drawn = [(draw.randrange(S.m), draw.randrange(S.n)) for _ in range(DRAWS)]
    of_each = [next((place for place in drawn if S.reads(*place) == read), None) for read in (False, True)]
    fixed = [(0, 0), (middle, middle), (S.m - 1, S.n - 1)]
    places = list(dict.fromkeys([*fixed, *(place for place in of_each if place is not None)]))
    single: list[tuple[Special, ...]] = [(Special(*place, value),) for place in places for value in (nan, inf)]
    if len(places) == 1:
        return single
    return [*single, (Special(*places[0], inf), Special(*places[-1], nan))]


def check_special(
    case: NormsCase, A: NormsMatrix, S: Structure, compute: Callable[[], dict[str, Any]], reference: Reference | None
) -> list[dict[str, Any]]:
    """Compute the norm with each placement, and return the records of the checks on the first rank. Collective."""
    records = []
    for placed in placements(S, case.seed):
        saved = list(_place(A, placed, complex_entries=case.complex))
        try:
            norms = compute()
        finally:
            for array, a, b, entry in reversed(saved):
                array[a, b] = entry
        if reference is not None:
            records.append(_record(case, S, placed, norms, reference))
    return records


def _place(A: NormsMatrix, placed: Sequence[Special], *, complex_entries: bool) -> Iterator[tuple[Any, int, int, Any]]:
    """Set the entries that this rank stores, and yield each array with the indices and the previous value.

    Of complex entries, the imaginary part becomes NaN or infinite. On the diagonal, it is the real part, because a
    Hermitian matrix has a real diagonal.
    """
    for entry in placed:
        for tile in A.tiles:
            a, b = tile.rows.before(entry.i), tile.cols.before(entry.j)
            inside = a < tile.A.shape[0] and b < tile.A.shape[1]
            if not inside or (tile.rows.to_global(a), tile.cols.to_global(b)) != (entry.i, entry.j):
                continue
            value: float | complex = entry.value
            if complex_entries:
                value = complex(entry.value, 1.0) if entry.i == entry.j else complex(1.0, entry.value)
            yield tile.A, a, b, (complex if complex_entries else float)(tile.A[a, b])
            tile.A[a, b] = value


def _record(
    case: NormsCase, S: Structure, placed: Sequence[Special], norms: dict[str, Any], reference: Reference
) -> dict[str, Any]:
    """Compare the norms with the expected ones, and return the record of the check."""
    read = [entry for entry in placed if S.reads(entry.i, entry.j)]
    passed, outcome = True, {}
    wanted = _expected(case, S, read)
    for kind in case.kinds:
        values = norms[kind] if case.vectors else [norms[kind]]
        plain = reference.expected_vectors(case, kind) if case.vectors else [reference.expected(case, kind)]
        passed &= len(values) == len(plain)
        for k, (value, finite) in enumerate(zip(values, plain)):
            expected = wanted.get(k, 0.0)
            passed &= (
                word(value) == word(expected)
                if expected
                else scaled_error(case, kind, value, finite) <= threshold(case, kind)
            )
        outcome[kind] = _count_text([float(value) for value in values], vectors=case.vectors)
    size = len(reference.expected_vectors(case, case.kinds[0])) if case.vectors else 1
    expected_text = _count_text([wanted.get(k, 0.0) for k in range(size)], vectors=case.vectors)
    return {
        "entries": [entry.record() for entry in placed],
        "read": bool(read),
        "expected": expected_text,
        "found": outcome,
        "passed": bool(passed),
    }


def _expected(case: NormsCase, S: Structure, read: Sequence[Special]) -> dict[int, float]:
    """Return the expected NaN or Inf by the index of the row or column; a norm of the matrix has index 0."""
    wanted: dict[int, float] = {}
    for entry in read:
        vectors = {0}
        if case.vectors:
            vectors = {entry.i, entry.j} if S.mirrored else {entry.j if case.vectors_of_A == "columns" else entry.i}
        for k in vectors:
            if not isnan(wanted.get(k, 0.0)):
                wanted[k] = entry.value
    return wanted


def _count_text(values: Sequence[float], *, vectors: bool) -> str:
    """Return the word for a norm, or how many vector norms are NaN or infinite."""
    if not vectors:
        return word(values[0])
    counts = {name: sum(map(test, values)) for name, test in (("nan", isnan), ("inf", isinf))}
    text = " and ".join(f"{name} in {count}" for name, count in counts.items() if count)
    return f"{text or 'finite, all'} of {len(values)}"


def word(value: float) -> str:
    """Return nan, inf or finite."""
    return "nan" if isnan(value) else "inf" if isinf(value) else "finite"
