"""Test norms of arrays, tiles, band storage and ScaLAPACK's layout, and the refusals of other forms."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mxpeak as mx
from mxpeak.configs.norms import DIAGS, STRUCTURES, UPLOS
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.structure import WITH_DIAG, WITH_UPLO
from tests.support.exact_norms import KINDS, agree, cases, exact_norms, expanded, poisoned, shapes, tiles_of
from tests.support.norm_tiles import TYPES, random_values
from tests.support.notes import note_case

FUNCTIONS = (mx.norm, mx.norms, mx.column_norms, mx.row_norms)

# --- accepted arguments -----------------------------------------------------------------------------------------


def test_integers_lists_vectors_and_foreign_byte_orders_are_accepted() -> None:
    assert mx.norms([[1, -2], [3, 4]]) == (4.0, 6.0, 7.0, math.sqrt(30))
    assert mx.norm(np.array([[True, False], [True, True]]), "one") == 2.0
    assert mx.norm(np.array([[-128, 127]], np.int8), "inf") == 255.0
    assert mx.norm(np.array([3, 4], np.uint16)) == 5.0
    assert mx.norms(np.array([3.0, -4.0])) == (4.0, 7.0, 4.0, 5.0), "a vector is a column"
    assert mx.norm(np.array([[3.0, 4.0]], ">f8")) == 5.0
    assert mx.norm(np.array([[3.0 + 4.0j]], ">c8")) == 5.0
    crooked = np.frombuffer(bytearray(8 * 6 + 1), np.uint8)[1:].view(np.float64).reshape(2, 3)
    crooked[:] = [[1, 2, 2], [4, 0, 0]]
    assert not crooked.flags.aligned
    assert mx.norms(crooked) == (4.0, 5.0, 5.0, 5.0)
    frozen = np.ones((3, 3))
    frozen.flags.writeable = False
    assert mx.norm(frozen) == 3.0
    assert mx.norm(np.ma.array([[3.0, 4.0]])) == 5.0, "nothing is masked"
    assert mx.norm(np.broadcast_to(2.0, (3, 4)), "inf") == 8.0


def test_kinds_have_the_names_that_numpy_and_lapack_know() -> None:
    A = np.array([[1.0, -2.0], [3.0, 5.0]])
    for kind, aliases in (("one", (1, 1.0, "1")), ("inf", (np.inf, math.inf, "infinity")), ("fro", ("frobenius",))):
        for alias in aliases:
            assert mx.norm(A, alias) == mx.norm(A, kind)
    assert mx.norm(A) == mx.norm(A, "fro")
    assert mx.column_norms(A, "inf").tolist() == mx.column_norms(A, "max").tolist() == [3.0, 5.0]


#: Arguments that are not dense matrices of numbers, and their errors.
REFUSED: list[tuple[Any, tuple[str, ...]]] = [
    (np.array([["a", "b"]]), ("float64", "bfloat16", "astype")),
    (np.array([[1, None]], dtype=object), ("object", "float64")),
    (np.ones((2, 2), np.longdouble), ("float64", "complex128")),
    (np.ones((2, 2), np.clongdouble), ("float64", "complex128")),
    (np.ones((2, 2), "M8[s]"), ("datetime64", "float64")),
    (np.ones((2, 2, 2)), ("3 dimensions",)),
    (np.float64(3.0), ("0 dimensions",)),
    ([[1.0, 2.0], [3.0]], ("not a numeric array",)),
    (np.ma.masked_greater(np.array([[1.0, 9.0]]), 5.0), ("masked", "filled(0)")),
    (scipy.sparse.csr_matrix(np.eye(3)), ("sparse", "toarray()", "scipy.sparse.linalg.norm")),
]


def test_what_is_not_a_matrix_of_numbers_is_refused_with_a_way_out() -> None:
    for (values, says), norms_of in product(REFUSED, FUNCTIONS):
        with pytest.raises(UsageError) as error:
            norms_of(values)
        assert all(word in str(error.value) for word in says), str(error.value)


#: Options that a 2x3 matrix does not accept, and their errors.
IMPOSSIBLE: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"structure": "diagonal"}, STRUCTURES),
    ({"structure": "triangular", "uplo": "L"}, UPLOS),
    ({"structure": "triangular", "diag": "U"}, DIAGS),
    ({"structure": "general", "uplo": "lower"}, WITH_UPLO),
    ({"structure": "symmetric", "diag": "unit"}, WITH_DIAG),
    ({"structure": "symmetric"}, ("2x3", "general")),
    ({"structure": "triangular"}, ("2x3", "trapezoid")),
    ({"structure": "hermitian-band", "kl": 1}, ("2x3", "band")),
    ({"structure": "band", "kl": 1}, ("kl", "ku")),
    ({"structure": "band", "kl": 1, "ku": -1}, ("ku = -1",)),
    ({"kl": 1}, ("band", "hermitian-band")),
    ({"threads": 0}, ("threads = 0", "integer of at least 1")),
    ({"threads": -2}, ("threads = -2", "integer of at least 1")),
    ({"device": "tpu"}, ("auto", "cpu")),
]


def test_options_that_do_not_fit_are_refused_with_the_choices() -> None:
    for (options, says), norms_of in product(IMPOSSIBLE, FUNCTIONS):
        with note_case(options=options), pytest.raises(UsageError) as error:
            norms_of(np.ones((2, 3)), **options)
        assert all(word in str(error.value) for word in says), str(error.value)


def test_unknown_kinds_are_refused_with_the_choices() -> None:
    kinds: list[Any] = ["two", 2, -1, "max ", None, "", [1], np.nan, -np.inf]
    for kind, norm_of in product(kinds, (mx.norm, mx.column_norms, mx.row_norms)):
        with note_case(kind=kind), pytest.raises(UsageError, match="max, one, inf, fro"):
            norm_of(np.ones((2, 2)), kind)


def test_a_device_that_is_not_there_is_no_usage_error() -> None:
    with pytest.raises(ResourceError, match="cpu"):
        mx.norm(np.ones((2, 2)), device="cuda")


# --- tiles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_matrix_in_ragged_tiles_has_the_norms_of_the_matrix(rng: Any, name: str) -> None:
    m, n = (23, 23) if shapes(name)[0] == (11, 11) else (23, 17)
    heights, widths = (5, 1, 0, 13, 4), (2, 7, 1, n - 10)
    for dtype, options in product(TYPES.values(), cases(name)):
        A = poisoned(random_values(rng, (m, n), dtype), name, **options)
        exact = exact_norms(expanded(A, name, **options))
        M = mx.from_tiles(tiles_of(A, heights, widths))
        assert M.shape == (m, n)
        for deterministic in (False, True):
            found = mx.norms(M, structure=name, deterministic=deterministic, **options)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)
        assert np.array_equal(
            mx.row_norms(M, "one", structure=name, **options),
            mx.row_norms(A, "one", structure=name, **options),
            equal_nan=True,
        )


@pytest.mark.parametrize("uplo", UPLOS)
@pytest.mark.parametrize("structure", ["triangular", "symmetric", "hermitian"])
def test_tiles_of_the_unread_triangle_need_not_be_there(rng: Any, structure: str, uplo: str) -> None:
    A, sizes = random_values(rng, (20, 20), np.dtype(np.complex128)), (6, 6, 6, 2)
    exact = exact_norms(expanded(A, structure, uplo=uplo))
    rows: list[list[Any]] = tiles_of(A, sizes, sizes)
    for i, j in product(range(4), range(4)):
        if (j > i) if uplo == "lower" else (j < i):
            rows[i][j] = None
    mapping = {(i, j): tile for i, row in enumerate(rows) for j, tile in enumerate(row) if tile is not None}
    for M in (mx.from_tiles(rows), mx.from_tiles(mapping), mx.from_tiles(mapping, sizes, sizes)):
        found = mx.norms(M, structure=structure, uplo=uplo)
        for kind in KINDS:
            agree(getattr(found, kind), exact[kind], kind, A)
        turned = mx.norms(M.T, structure=structure, uplo={"lower": "upper", "upper": "lower"}[uplo])
        agree(turned.one, exact["inf"], "inf", A)
        agree(turned.inf, exact["one"], "one", A)


def test_tiles_are_not_copied_and_may_lie_anyhow(rng: Any) -> None:
    A = rng.standard_normal((12, 10))
    big = np.full((40, 40), np.nan)
    pieces = {
        (0, 0): big[1:22:3, 20:10:-2],
        (0, 1): big[20:6:-2, 25:30],
        (1, 0): big.T[30:35, :5],
        (1, 1): big[35:, :5],
    }
    pieces[1, 1] = pieces[1, 1][::-1, ::-1]
    for (i, j), piece in pieces.items():
        piece[:] = A[7 * i : 7 + 5 * i, 5 * j : 5 + 5 * j]
    M = mx.from_tiles(pieces)
    assert mx.norms(M, deterministic=True) == mx.norms(A, deterministic=True)
    pieces[1, 1][2, 3] = 1e6
    assert mx.norm(M, "max") == 1e6, "a later change shows: nothing was copied"


def test_no_tiles_at_all_make_an_empty_matrix() -> None:
    assert mx.norms(mx.from_tiles({})) == (0.0, 0.0, 0.0, 0.0)
    assert mx.from_tiles([]).shape == (0, 0)


def test_tiles_that_are_read_and_missing_are_missed() -> None:
    M = mx.from_tiles({(1, 1): np.ones((2, 3)), (1, 0): np.ones((2, 5))}, heights=[4, 2], widths=[5, 3])
    assert M.shape == (6, 8)
    for norms_of in (mx.norm, mx.norms, mx.column_norms, mx.row_norms):
        with pytest.raises(UsageError, match="contain 16 of the 48 entries that structure 'general' reads"):
            norms_of(M)
    A = np.arange(1.0, 17.0).reshape(4, 4)
    lower = mx.from_tiles([[A[:2, :2], None], [A[2:, :2], A[2:, 2:]]])
    assert mx.norm(lower, "inf", structure="symmetric") == mx.norm(A, "inf", structure="symmetric")
    with pytest.raises(UsageError, match="contain 6 of the 10 entries that structure 'symmetric' reads"):
        mx.norm(lower, "inf", structure="symmetric", uplo="upper")


def test_sizes_of_block_rows_may_be_an_array() -> None:
    M = mx.from_tiles({(0, 0): np.ones((2, 3)), (1, 0): np.ones((1, 3))}, np.array([2, 1]), np.array([3]))
    assert M.shape == (3, 3)
    assert mx.norm(M, "one") == 3.0


#: Tiles that do not form a matrix, and their errors.
BAD_TILES: list[tuple[Any, tuple[str, ...]]] = [
    (([[np.ones((2, 2)), np.ones((3, 2))]],), ("(0, 1)", "(3, 2)", "2 rows")),
    (([[np.ones((2, 2))], [np.ones((2, 3))]],), ("(1, 0)", "(2, 3)", "2 columns")),
    (([[np.ones((2, 2)), None]],), ("block column 1", "widths")),
    (([[np.ones((2, 2))], [None]],), ("block row 1", "heights")),
    (({(0, 0): np.ones((2, 2)), (2, 0): np.ones((2, 2))},), ("block row 1", "heights")),
    (({(1, 0): np.ones((2, 2))}, [2], [2]), ("(1, 0)", "1x1")),
    (({(-1, 0): np.ones((2, 2))}, [2], [2]), ("(-1, 0)", "1x1")),
    (({(0, 0): np.ones((2, 2))}, [3], [2]), ("(0, 0)", "(2, 2)", "3 rows")),
    (([[np.ones((2, 2)), np.ones((2, 2), np.float32)]],), ("float32", "float64")),
    (([[np.ones(4)]],), ("(0, 0)", "1 dimensions")),
    (([[np.array([["x"]])]],), ("(0, 0)", "float64")),
]


def test_tiles_that_do_not_make_a_matrix_are_refused() -> None:
    for arguments, says in BAD_TILES:
        with note_case(arguments=arguments), pytest.raises(UsageError) as error:
            mx.from_tiles(*arguments)
        assert all(word in str(error.value) for word in says), str(error.value)


# --- band storage -----------------------------------------------------------------------------------------------


def banded(A: Any, kl: int, ku: int, order: str, spare: int = 0) -> Any:
    """Return LAPACK's band storage of A with NaN in unused entries, and `spare` more rows like a factorization."""
    m, n = A.shape
    AB = np.full((kl + ku + 1 + spare, n), np.nan, A.dtype, order=order)
    for i, j in product(range(m), range(n)):
        if -kl <= j - i <= ku:
            AB[ku + i - j, j] = A[i, j]
    return AB


@pytest.mark.parametrize(("m", "n"), [(11, 11), (7, 13), (13, 7), (1, 5), (5, 1), (0, 3), (3, 0)])
def test_band_storage_has_the_norms_of_the_band(rng: Any, m: int, n: int) -> None:
    widths = ((0, 0), (1, 0), (0, 2), (3, 1), (4, 6))
    for turn, (dtype, (kl, ku), order) in enumerate(product(TYPES.values(), widths, "CF")):
        A, spare = random_values(rng, (m, n), dtype), (0, 2)[turn // 2 % 2]
        exact = exact_norms(expanded(A, "band", kl=kl, ku=ku))
        M = mx.from_band(banded(A, kl, ku, order, spare), kl, ku, m)
        assert M.shape == (m, n)
        for deterministic in (False, True):
            found = mx.norms(M, deterministic=deterministic)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)
        assert np.array_equal(mx.column_norms(M), mx.column_norms(A, structure="band", kl=kl, ku=ku))


@pytest.mark.parametrize("uplo", UPLOS)
def test_half_of_a_hermitian_band_in_storage_has_its_norms(rng: Any, uplo: str) -> None:
    for dtype, k, order in product(TYPES.values(), (0, 1, 3), "CF"):
        A = poisoned(random_values(rng, (11, 11), dtype), "hermitian-band", uplo=uplo, kl=k)
        exact = exact_norms(expanded(A, "hermitian-band", uplo=uplo, kl=k))
        kl, ku = (k, 0) if uplo == "lower" else (0, k)
        M = mx.from_band(banded(A, kl, ku, order), kl, ku)
        for deterministic in (False, True):
            found = mx.norms(M, structure="hermitian-band", uplo=uplo, kl=k, deterministic=deterministic)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)


def test_of_a_stored_band_nothing_else_is_read() -> None:
    A = np.triu(np.tril(np.ones((6, 6)), 1), -2)  # kl = 2, ku = 1
    M = mx.from_band(np.ones((4, 6)), 2, 1)
    for options in (
        {},
        {"structure": "band", "kl": 1, "ku": 1},
        {"structure": "band", "kl": 9, "ku": 9},
        {"structure": "triangular"},
        {"structure": "triangular", "uplo": "upper", "diag": "unit"},
        {"structure": "hessenberg"},
        {"structure": "symmetric"},
        {"structure": "hermitian-band", "kl": 2},
    ):
        assert mx.norms(M, **options) == mx.norms(A, **options)
        assert mx.norms(M.T, **options) == mx.norms(A.T, **options)
        assert mx.row_norms(M, "one", **options).tolist() == mx.row_norms(A, "one", **options).tolist()


@pytest.mark.parametrize("name", STRUCTURES)
def test_what_lies_outside_of_the_stored_band_is_zero(rng: Any, name: str) -> None:
    kl, ku = 2, 1
    A = random_values(rng, (7, 7), TYPES["complex128"])
    M = mx.from_band(banded(A, kl, ku, "F"), kl, ku)
    for i, j in product(range(7), range(7)):
        A[i, j] *= -kl <= j - i <= ku
    for options in cases(name):
        exact = exact_norms(expanded(A, name, **options))
        for deterministic in (False, True):
            found = mx.norms(M, structure=name, deterministic=deterministic, **options)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)
        assert np.array_equal(mx.row_norms(M, structure=name, **options), mx.row_norms(A, structure=name, **options))


def test_a_mirrored_band_whose_triangle_is_not_stored_is_refused() -> None:
    M = mx.from_band(np.ones((3, 6)), 2, 0)
    assert mx.norm(M, "inf", structure="hermitian-band", kl=2) == 5.0
    for options in (
        {"structure": "symmetric", "uplo": "upper"},
        {"structure": "hermitian-band", "kl": 2, "uplo": "upper"},
    ):
        with pytest.raises(UsageError, match="use uplo='lower'"):
            mx.norm(M, "inf", **options)
    with pytest.raises(UsageError, match="does not use kl"):
        mx.norm(M, kl=1)


#: Arrays that are not band storage of these widths, and their errors.
BAD_BANDS: list[tuple[Any, int, int, str]] = [
    (np.ones((3, 5)), 2, 1, "has 4 rows"),
    (np.ones(5), 0, 0, "has 1 rows"),
    (np.ones((3, 5)), -1, 1, "0 or more"),
    (np.ones((3, 5)), 1, -1, "0 or more"),
    (np.ones((3, 5), object), 1, 1, "float64"),
]


def test_band_storage_that_does_not_fit_is_refused() -> None:
    for AB, kl, ku, says in BAD_BANDS:
        with note_case(shape=AB.shape, kl=kl, ku=ku), pytest.raises(UsageError, match=says):
            mx.from_band(AB, kl, ku)


# --- ScaLAPACK's layout, on one rank ----------------------------------------------------------------------------


def descriptor(m: int, n: int, mb: int, nb: int, lld: int) -> list[int]:
    return [1, 0, m, n, mb, nb, 0, 0, lld]


@pytest.mark.parametrize("name", STRUCTURES)
def test_scalapacks_array_on_one_rank_has_the_norms_of_the_matrix(rng: Any, name: str) -> None:
    m, n = (11, 11) if shapes(name)[0] == (11, 11) else (13, 7)
    for dtype, options in product(TYPES.values(), cases(name)):
        A = poisoned(random_values(rng, (m, n), dtype), name, **options)
        exact = exact_norms(expanded(A, name, **options))
        padded = np.full((m + 5, n), np.nan, dtype, order="F")
        padded[:m] = A
        flat = padded.ravel(order="F")
        forms = [(np.asfortranarray(A), m), (padded, m + 5), (flat, m + 5), (flat[: -5 or None], m + 5), (A, m)]
        for (local, lld), (mb, nb) in product(forms, ((3, 2), (64, 64))):
            M = mx.from_scalapack(local, descriptor(m, n, mb, nb, lld))
            assert M.shape == (m, n)
            found = mx.norms(M, structure=name, **options)
            for kind in KINDS:
                agree(getattr(found, kind), exact[kind], kind, A)


def test_scalapacks_empty_matrices_have_norm_0() -> None:
    for m, n in ((0, 0), (0, 3), (3, 0)):
        for local in (np.zeros((m, n)), np.zeros(m * n), np.zeros(5)):
            assert mx.norms(mx.from_scalapack(local, descriptor(m, n, 2, 2, max(m, 1)))) == (0.0, 0.0, 0.0, 0.0)


#: Local arrays and descriptors that do not match, and their errors.
BAD_DESCRIPTORS: list[tuple[Any, list[int], dict[str, Any], str]] = [
    (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0], {}, "9 integers"),
    (np.ones((4, 4)), [502, 0, 4, 4, 2, 2, 0, 0, 4], {}, "DTYPE"),
    (np.ones((4, 4)), [1, 0, -4, 4, 2, 2, 0, 0, 4], {}, "M=-4"),
    (np.ones((4, 4)), [1, 0, 4, 4, 0, 2, 0, 0, 4], {}, "MB=0"),
    (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 1, 0, 4], {}, "RSRC=1"),
    (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, -1, 4], {}, "CSRC=-1"),
    (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 3], {}, "LLD = 3"),
    (np.ones((3, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "4x4 local entries"),
    (np.ones((4, 3)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "4x4 local entries"),
    (np.ones(15), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "need 16"),
    (np.ones(18), [1, 0, 4, 4, 2, 2, 0, 0, 5], {}, "need 19"),
    (np.ones((4, 4), object), [1, 0, 4, 4, 2, 2, 0, 0, 4], {}, "float64"),
    (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {"grid": (2, 3)}, r"2\*3 = 6"),
    (np.ones((4, 4)), [1, 0, 4, 4, 2, 2, 0, 0, 4], {"order": "C"}, "^order = 'C' is unknown; use row or column"),
]


def test_descriptors_that_do_not_fit_are_refused() -> None:
    for local, desc, options, says in BAD_DESCRIPTORS:
        with note_case(desc=desc, options=options), pytest.raises(UsageError, match=says):
            mx.from_scalapack(local, desc, **options)
