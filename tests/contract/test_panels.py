"""Test HPL's panels and row swaps on every backend."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.exchange import allreduce_by
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.contract.lu import HAS_TOP, HEAD, ROW, VALUE, Panel, better_candidate
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.layout.row_moves import local_moves, row_moves
from tests.support.backends import Backend, backend_named
from tests.support.blocks import STORED, globals_of, matrix, numbers, panel, within
from tests.support.roundoff import U

FACTS = ("left", "crout", "right")


def factored(
    backend: Backend,
    values: Any,
    rows: BlockCyclic,
    *,
    nbmin: int = 2,
    ndiv: int = 2,
    rfact: str = "right",
    pfact: str = "right",
    il0: int = 0,
    top: int | None = None,
    exchange: Any = None,
    precision: str = "fp64",
) -> tuple[list[float], Any, Any]:
    """Return pivots and flag, L1, and the panel's rows."""
    jb = values.shape[1]
    A, L1 = panel(backend, values, precision), panel(backend, np.full((jb, jb), np.nan), precision)
    pivots = backend.kernels.buffer(jb + 1, precision)
    plan = panel_plan(jb, nbmin, ndiv, rfact)
    backend.kernels.factor_panel(Panel(A, L1, pivots, rows, il0, jb if top is None else top, plan, pfact), exchange)
    return pivots.tolist(), numbers(backend, L1), numbers(backend, A)


def on_either(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run torch's panels on the device and then on the host; run those of other backends once."""
    for where in ("device", "host") if backend.on_torch else ("",):
        if where:
            monkeypatch.setattr(backend.kernels, "panel_on", where)
        yield where


def test_a_panel_is_the_reference_panel(backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(1, 1, 1, 2, 0), (13, 5, 2, 2, 5), (61, 16, 4, 3, 16), (200, 37, 8, 2, 74)]
    for (m, jb, nbmin, ndiv, il0), where, stored in product(cases, on_either(backend, monkeypatch), STORED):
        values, rows = (rng.random((m, jb)) - 0.5).astype(STORED[stored][0]), BlockCyclic(m + il0, jb, 0, 1)
        pivots_ref, L1_ref, A_ref = factored(backend_named("reference"), values, rows, il0=il0, precision=stored)
        # |L| <= 1 and |U| <= growth; two eliminations in different orders differ by jb·u·growth²: 100 covers the
        # constant.
        bound, way = (
            100 * jb * STORED[stored][1] * max(1.0, np.abs(L1_ref).max()) ** 2,
            {"il0": il0, "precision": stored},
        )
        for pfact, rfact in product(FACTS, FACTS) if where != "device" else [("right", "right")]:
            pivots, L1, A = factored(backend, values, rows, nbmin=nbmin, ndiv=ndiv, rfact=rfact, pfact=pfact, **way)
            assert pivots == pivots_ref
            assert pivots[jb] == 0.0
            assert within(L1, L1_ref, bound), (m, where, pfact, rfact)
            assert within(A[jb:], A_ref[jb:], bound), (m, where, pfact, rfact)


def test_the_upper_of_equal_pivots_wins_in_any_chunk_of_rows(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of -1, 0 and 1: elimination of four columns is exact, and most columns have many largest entries."""
    for stored, m in product(STORED, (64, 131, 300)):
        values = rng.integers(-1, 2, (m, 4)).astype(STORED[stored][0])
        values[: m // 2] *= rng.integers(0, 2, (m // 2, 1))
        pivots_ref, _, _ = factored(backend_named("reference"), values, BlockCyclic(m, 4, 0, 1), precision=stored)
        for where in on_either(backend, monkeypatch):
            for pfact in FACTS if where != "device" else ():
                rows = BlockCyclic(m, 4, 0, 1)
                pivots, _, _ = factored(backend, values, rows, nbmin=4, pfact=pfact, precision=stored)
                assert pivots == pivots_ref, (stored, m, pfact)


@pytest.mark.parametrize("P", [2, 3, 5])
def test_a_panel_over_a_process_column_has_the_pivots_of_one_process(backend: Backend, P: int) -> None:
    n, nb, jb = 97, 8, 8
    whole = np.random.default_rng(7).random((n, jb)) - 0.5

    def factor(comm: Any, fact: str) -> tuple[list[float], Any, Any]:
        own = backend
        if backend.name != "reference":  # each rank with a team of its own
            host = HostKernels(backend.kernels.threads, poison=True)
            own = Backend(
                backend.name, type(backend.kernels)(backend.kernels.device, host) if backend.on_torch else host
            )
        rows = BlockCyclic(n, nb, comm.rank, P)

        def exchange(mine: Any, theirs: Any) -> None:
            allreduce_by(comm, mine, theirs, better_candidate)

        top = jb if comm.rank == 0 else 0
        return factored(own, whole[globals_of(rows)], rows, nbmin=4, rfact=fact, pfact=fact, top=top, exchange=exchange)

    pivots_ref, L1_ref, _ = factored(backend_named("reference"), whole, BlockCyclic(n, nb, 0, 1), nbmin=jb)
    for fact in FACTS:
        for pivots, L1, _ in run_ranks(P, lambda comm, fact=fact: factor(comm, fact)):
            assert pivots == pivots_ref
            assert within(L1, L1_ref, 100 * jb * U)


def test_the_larger_candidate_wins_and_the_upper_row_on_ties() -> None:
    def candidate(value: float, row: int, top: float, fill: float) -> Any:
        made = np.full(HEAD + 4, fill)
        made[VALUE], made[ROW], made[HAS_TOP], made[3] = value, row, top, 0.0
        return made

    kinds = [candidate(v, r, 0.0, 10.0 * v + r) for v in (-1.0, 0.0, 1.0, 2.0) for r in ((-1,) if v < 0 else (3, 5))]
    for a, b in product(kinds, kinds):
        own, theirs = a.copy(), b.copy()
        theirs[HAS_TOP], theirs[HEAD + 2 :] = 1.0, 7.0
        better_candidate(own, theirs)
        best = b if (b[VALUE], -b[ROW]) > (a[VALUE], -a[ROW]) and b[ROW] >= 0 else a
        assert np.array_equal(own[[VALUE, ROW, HEAD, HEAD + 1]], best[[VALUE, ROW, HEAD, HEAD + 1]])
        assert list(own[[HAS_TOP, HEAD + 2, HEAD + 3]]) == [1.0, 7.0, 7.0]
        before = own.copy()
        better_candidate(own, candidate(-1.0, -1, 0.0, np.nan))
        assert np.array_equal(own, before)


def test_a_column_of_zeros_is_named(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((9, 3)) * [1.0, 2.0, 0.5]  # columns 1 and 2 are zero after the elimination of column 0
    for _ in on_either(backend, monkeypatch):
        pivots, _, _ = factored(backend, values, BlockCyclic(9, 3, 0, 1))
        assert pivots[3] == 2.0


def test_what_is_not_finite_reaches_the_factors_of_a_panel(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.name == "reference":
        return  # the reference divides by such a pivot, with a warning
    for value, _, fact in product((np.nan, np.inf), on_either(backend, monkeypatch), ("left", "right")):
        values = rng.random((40, 6)) - 0.5
        values[11, 2] = value
        _, L1, A = factored(backend, values, BlockCyclic(40, 6, 0, 1), pfact=fact)
        assert not (np.isfinite(A[6:]).all() and np.isfinite(L1).all())


def test_a_failed_exchange_is_raised_and_not_swallowed(backend: Backend, rng: Any) -> None:
    def exchange(mine: Any, theirs: Any) -> None:
        raise ConnectionError("the other rank is gone")

    with pytest.raises(ConnectionError, match="is gone"):
        factored(backend, rng.random((40, 4)), BlockCyclic(80, 4, 0, 2), exchange=exchange)


def test_a_panel_travels_as_one_piece_and_leaves_its_neighbours_alone(torch_backend: Backend, rng: Any) -> None:
    from mxpeak.kernels.torch.lu import panel as torch_panel

    backend, kernels, values = torch_backend, torch_backend.kernels, rng.random((13, 5))
    for part in (panel(backend, values), panel(backend, values)[13:], backend.array(values[0].copy())):
        before = numbers(backend, part)
        piece = torch_panel._flat(part).cpu().clone()
        there = torch_panel._shaped_like(part, piece)
        assert np.array_equal(there, before)
        there += 1.0
        torch_panel._flat(part).copy_(piece)
        assert np.array_equal(numbers(backend, part), before + 1.0)
    whole = kernels.panel(kernels.buffer(kernels.panel_size(18, 5)), 18, 5)
    whole[:] = 7.0
    A = whole[2:15]
    piece = torch_panel._flat(A).cpu().clone()
    torch_panel._shaped_like(A, piece)[:] = values
    torch_panel._flat(A).copy_(piece)
    assert np.array_equal(numbers(backend, A), values)
    assert (numbers(backend, whole)[[0, 1, 15, 16, 17]] == 7.0).all()


def test_row_moves_are_equivalent_to_swaps(backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend.on_torch:
        monkeypatch.setattr("mxpeak.kernels.torch.lu.lu.STRIP", 3)
    kernels, (n, j0, jb) = backend.kernels, (53, 6, 11)
    for columns, stored in product((0, 1, 7), STORED):
        pivots = [int(rng.integers(j0 + i, n)) for i in range(jb)]
        moves = local_moves(row_moves(j0, pivots), j0, BlockCyclic(n, jb, 0, 1))
        values = rng.random((n, columns)).astype(STORED[stored][0])
        expected = values.copy()
        for i, pivot in enumerate(pivots):
            expected[[j0 + i, pivot]] = expected[[pivot, j0 + i]]
        lists = [kernels.indices(part) for part in (moves.my_sources, moves.my_targets, moves.out_rows[0])]
        A = matrix(backend, values, stored)
        kernels.permute_rows(A, j0, *lists)
        assert np.array_equal(numbers(backend, A), expected)
        out = matrix(backend, np.zeros((jb, columns)), stored)
        kernels.gather_rows(matrix(backend, values, stored), lists[0], out)
        assert np.array_equal(numbers(backend, out), values[moves.my_sources])
        kernels.scatter_rows(out, lists[0], A)
        assert np.array_equal(numbers(backend, A)[moves.my_sources], numbers(backend, out))
