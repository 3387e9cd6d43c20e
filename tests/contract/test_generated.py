"""Compare generated matrices on every backend with their definition, entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.host.dense import generated
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from tests.support.backends import Backend
from tests.support.blocks import GRIDS, STORED, WIDE, globals_of, matrix, numbers, parts, vector, within
from tests.support.generated import KINDS, entries_of, slack, whole
from tests.support.roundoff import U
from tests.support.turns import for_each


def ranks(backend: Backend) -> list[tuple[BlockCyclic, BlockCyclic]]:
    """Return rows and columns of ranks on many grids; some are empty, and the last ones exceed a Triton tile."""
    if backend.interpreted:
        return [*parts(7, 3, 1, 2), parts(29, 8, 2, 3)[3], parts(5, 4, 3, 1)[2], parts(139, 16, 5, 1)[1]]
    large = [] if backend.name == "reference" else [(139, 16, 1, 1)]
    return [rank for grid in [(0, 4, 2, 2), *GRIDS, *large] for rank in parts(*grid)]


@for_each("kind", KINDS)
def test_entries_match_their_definition_and_given_values_are_on_the_diagonal(
    backend: Backend, rng: Any, kind: str
) -> None:
    # One column more than rows, as with HPL's b; and a single column, as HPL-MxP's b, down to a single entry.
    wider = [(rows, BlockCyclic(rows.n + 1, cols.nb, cols.p, cols.P)) for rows, cols in ranks(backend)]
    alone = [(BlockCyclic(n, 3, 0, 1), BlockCyclic(1, 1, 0, 1)) for n in (1, 7)]
    for rows, cols in wider + alone:
        n = rows.n
        entries, diagonal, (i, j) = entries_of(kind, n), 10.0 + rng.random(n), (globals_of(rows), globals_of(cols))
        A = whole(entries, n + 1)[np.ix_(i, j)]
        on = np.equal.outer(i, j)
        for own in (None, diagonal[i]):
            expected = A if own is None else np.where(on, own[:, None], A)
            for precision, (dtype, u) in STORED.items():
                target = matrix(backend, np.full(A.shape, np.nan), precision)
                backend.kernels.generate(target, rows, cols, entries, None if own is None else vector(backend, own))
                # Gaussian fp64 values that differ by the slack may round to neighbors in fp32, which differ by 2u.
                further = 2 * u * np.abs(A) if precision == "fp32" and slack(entries) else 0.0
                off = np.where(on & (own is not None), 0.0, slack(entries) + further)
                assert within(numbers(backend, target), expected.astype(dtype), off), (rows, cols, precision)


@for_each("kind", KINDS)
def test_products_and_sums_of_a_matrix_that_is_not_stored(backend: Backend, rng: Any, kind: str) -> None:
    kernels = backend.kernels
    for rows, cols in ranks(backend):
        n, i, j = rows.n, globals_of(rows), globals_of(cols)
        entries, diagonal, x = entries_of(kind, n), rng.random(n) * n, rng.random(n) - 0.5
        for own in (None, diagonal[i]):
            A = whole(entries, n)[np.ix_(i, j)].astype(WIDE)
            A = A if own is None else np.where(np.equal.outer(i, j), own[:, None], A)
            own_diagonal = None if own is None else vector(backend, own)
            y, sums = kernels.buffer(len(i)), kernels.buffer(len(i))
            kernels.generated_matvec(y, rows, cols, entries, own_diagonal, vector(backend, x[j]))
            kernels.generated_row_sums(sums, rows, cols, entries, own_diagonal)
            # n products and n - 1 sums, in any order; each entry may also differ by its slack.
            off, size = slack(entries), np.abs(A)
            bound = 2 * len(j) * U * (size @ np.abs(x[j])) + off * np.abs(x[j]).sum()
            assert within(numbers(backend, y), A @ x[j], bound), (rows, cols)
            bound = 2 * len(j) * U * size.sum(axis=1) + off * len(j)
            assert within(numbers(backend, sums), size.sum(axis=1), bound), (rows, cols)


@for_each("kind", KINDS)
@for_each("precision", STORED)
def test_a_matrix_made_with_sums_is_the_same_and_sums_are_those_of_what_is_stored(
    backend: Backend, rng: Any, kind: str, precision: str
) -> None:
    kernels = backend.kernels
    for rows, cols in ranks(backend):
        i, j = globals_of(rows), globals_of(cols)
        entries, diagonal, W = (
            entries_of(kind, rows.n),
            vector(backend, rng.random(len(i))),
            rng.random((2, len(j))) - 0.5,
        )
        plain, target = (kernels.matrix(len(i), len(j), precision) for _ in range(2))
        sums = matrix(backend, np.full((2, len(i)), np.nan), "fp64")
        kernels.generate(plain, rows, cols, entries, diagonal)
        kernels.generate_with_sums(target, rows, cols, entries, diagonal, sums, matrix(backend, W, "fp64"))
        A = numbers(backend, target)
        assert np.array_equal(A, numbers(backend, plain)), (rows, cols)
        bound = 2 * len(j) * U * (np.abs(W) @ np.abs(A.astype(WIDE)).T)
        assert within(numbers(backend, sums), W @ A.astype(WIDE).T, bound), (rows, cols)


def test_a_matrix_made_in_pieces_has_the_same_bits(backend: Backend, rng: Any, monkeypatch: Any) -> None:
    if backend.name != "host":
        pytest.skip("no pieces")
    kernels = backend.kernels
    rows, cols = parts(61, 8, 2, 2)[3]
    m, n = rows.local_size, cols.local_size
    entries, diagonal, x = entries_of("HPL's", 61), rng.random(m), rng.random(n)

    def matrix_bytes() -> bytes:
        A, y, sums = np.full((m, n), np.nan), np.full(m, np.nan), np.full(m, np.nan)
        kernels.generate(A, rows, cols, entries, diagonal)
        kernels.generated_matvec(y, rows, cols, entries, diagonal, x)
        kernels.generated_row_sums(sums, rows, cols, entries, diagonal)
        return A.tobytes() + y.tobytes() + sums.tobytes()

    whole = matrix_bytes()
    monkeypatch.setattr(generated, "PIECE", 5 * n)
    assert matrix_bytes() == whole


def test_signs_belong_to_their_global_index(backend: Backend) -> None:
    for n, nb, Q in [(0, 4, 1), (1, 1, 1), (61, 8, 3), (30, 64, 2), (128, 5, 4)]:
        for seed in (0, 100, 2**63 + 5):
            expected = np.array([-1.0 if lcg.state(seed, 1 + j) >= 2**63 else 1.0 for j in range(n)])
            for q in range(Q):
                cols = BlockCyclic(n, nb, q, Q)
                v = backend.kernels.buffer(cols.local_size)
                backend.kernels.signs(v, cols, seed)
                assert np.array_equal(numbers(backend, v), expected[globals_of(cols)])
