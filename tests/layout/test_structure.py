"""Compare structures with their definitions for all small shapes, and test that errors name the choices."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from mxpeak.configs.norms import DIAGS, STRUCTURES, UPLOS
from mxpeak.errors import UsageError
from mxpeak.layout.structure import DIAGONAL, ENDLESS, SQUARE, WHOLE, WITH_DIAG, WITH_UPLO, Band, Structure, structure
from tests.support.notes import note_case
from tests.support.structures import Inside, definition

SHAPES = list(product(range(6), range(6)))
EDGES = (-7, -3, -1, 0, 1, 2, 7, ENDLESS)


def entries_of(band: Band, m: int, n: int) -> set[tuple[int, int]]:
    return {(i, j) for i in range(m) for j in range(n) if band.contains(i, j)}


def defined(m: int, n: int, inside: Inside) -> set[tuple[int, int]]:
    return {(i, j) for i in range(m) for j in range(n) if inside(i, j)}


# --- bands ------------------------------------------------------------------------------------------------------


def test_a_band_contains_what_lies_between_its_edges() -> None:
    for below, above, (m, n) in product(EDGES, EDGES, SHAPES):
        inside = defined(m, n, lambda i, j, below=below, above=above: i - j <= below and j - i <= above)
        assert entries_of(Band(below, above), m, n) == inside, (below, above, m, n)


def test_the_entries_of_a_band_are_counted() -> None:
    for below, above, (m, n) in product(EDGES, EDGES, SHAPES):
        band = Band(below, above)
        if below + above >= -1:
            assert band.entries(m, n) == len(entries_of(band, m, n)), (band, m, n)


def test_a_band_whose_edges_cross_has_no_entries() -> None:
    for below, above, (m, n) in product(EDGES, EDGES, SHAPES):
        if below + above < 0:
            assert Band(below, above).entries(m, n) == 0, (below, above, m, n)


def test_the_entries_of_large_bands_are_counted_without_going_through_them() -> None:
    n = 10**9
    assert WHOLE.entries(n, 2 * n) == 2 * n * n
    assert DIAGONAL.entries(n, 2 * n) == n
    assert Band(ENDLESS, 0).entries(n, n) == n * (n + 1) // 2
    assert Band(ENDLESS, -1).entries(n, n) == n * (n - 1) // 2
    assert Band(1, 2).entries(n, n) == n + (n - 1) + (n - 1) + (n - 2)


def test_the_transposed_band_contains_the_transposed_entries() -> None:
    for below, above, (m, n) in product(EDGES, EDGES, SHAPES):
        band = Band(below, above)
        assert entries_of(band.transposed, n, m) == {(j, i) for i, j in entries_of(band, m, n)}
        assert band.transposed.transposed == band


# --- structures -------------------------------------------------------------------------------------------------


def read(S: Structure) -> set[tuple[int, int]]:
    """Return the entries that a structure reads: those of its band, and the diagonal if it is mirrored."""
    diagonal = {(i, i) for i in range(S.diagonal)} if S.mirrored else set()
    assert not diagonal & entries_of(S.band, S.m, S.n), "a diagonal that is read apart must not be read twice"
    return entries_of(S.band, S.m, S.n) | diagonal


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_reads_what_its_definition_says(name: str) -> None:
    for (m, n), uplo, diag, k, l in product(SHAPES, UPLOS, DIAGS, (0, 1, 3, 9), (0, 2, 9)):
        if name in SQUARE and m != n:
            continue
        options: dict[str, Any] = {"uplo": uplo} if name in WITH_UPLO else {}
        if name in WITH_DIAG:
            options["diag"] = diag
        if name == "band":
            options |= {"kl": k, "ku": l}
        if name == "hermitian-band":
            options["kl" if l else "ku"] = k
        S = structure(name, m, n, **options)
        unit = name in WITH_DIAG and diag == "unit"
        inside = definition(name, uplo, k, l)
        assert read(S) == defined(m, n, lambda i, j, u=unit, f=inside: f(i, j) and not (u and i == j))
        assert S.entries == len(read(S))
        assert (S.name, S.m, S.n, S.diagonal) == (name, m, n, min(m, n))
        assert S.mirrored == (name in ("symmetric", "hermitian", "hermitian-band"))
        assert S.real == (name in ("hermitian", "hermitian-band"))
        assert S.ones == unit
        assert read(S.transposed) == {(j, i) for i, j in read(S)}
        assert S.transposed.transposed == S
        assert (S.transposed.m, S.transposed.n) == (n, m)


def test_what_is_left_open_is_lower_and_nonunit() -> None:
    for name in WITH_UPLO:
        widths = {"kl": 1} if name == "hermitian-band" else {}
        assert structure(name, 4, 4, **widths) == structure(name, 4, 4, uplo="lower", **widths)
    for name in WITH_DIAG:
        assert structure(name, 4, 4) == structure(name, 4, 4, diag="nonunit")


#: Invalid calls and their errors.
MISTAKES: list[tuple[str, int, int, dict[str, Any], tuple[str, ...]]] = [
    ("triangle", 3, 3, {}, STRUCTURES),
    ("triangular", 3, 3, {"uplo": "left"}, ("'left'", *UPLOS)),
    ("triangular", 3, 3, {"uplo": "L"}, ("'L'", *UPLOS)),
    ("trapezoid", 3, 3, {"diag": "ones"}, ("'ones'", *DIAGS)),
    ("general", 3, 3, {"uplo": "lower"}, ("general", "uplo", *WITH_UPLO)),
    ("hessenberg", 3, 3, {"uplo": "upper"}, ("hessenberg", "uplo", *WITH_UPLO)),
    ("band", 3, 3, {"uplo": "upper", "kl": 1, "ku": 1}, ("band", "uplo", *WITH_UPLO)),
    ("symmetric", 3, 3, {"diag": "unit"}, ("symmetric", "diag", *WITH_DIAG)),
    ("triangular", 3, 4, {}, ("3x4", "trapezoid")),
    ("symmetric", 3, 4, {}, ("3x4", "general")),
    ("hermitian", 4, 3, {}, ("4x3", "general")),
    ("hermitian-band", 4, 3, {"kl": 1}, ("4x3", "'band'")),
    ("general", 3, 3, {"kl": 1}, ("general", "kl", "band", "hermitian-band")),
    ("symmetric", 3, 3, {"ku": 1}, ("symmetric", "ku", "band", "hermitian-band")),
    ("band", 3, 3, {"kl": -1, "ku": 0}, ("kl = -1", "0 or more")),
    ("hermitian-band", 3, 3, {"ku": -2}, ("ku = -2", "0 or more")),
    ("band", 3, 3, {}, ("kl", "ku")),
    ("band", 3, 3, {"kl": 1}, ("kl", "ku")),
    ("band", 3, 3, {"ku": 1}, ("kl", "ku")),
    ("hermitian-band", 3, 3, {}, ("kl", "ku")),
    ("hermitian-band", 3, 3, {"kl": 1, "ku": 2}, ("kl = 1", "ku = 2")),
]


def test_errors_name_valid_alternatives() -> None:
    for name, m, n, options, says in MISTAKES:
        with note_case(name=name, m=m, n=n, options=options):
            with pytest.raises(UsageError) as error:
                structure(name, m, n, **options)
            assert all(word in str(error.value) for word in says), str(error.value)
