"""Test block-cyclic indices, LU steps, row moves, panel plans and jumps exhaustively in small cases."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic, numroc
from mxpeak.layout.lu_schedule import lu_steps, split_columns
from mxpeak.layout.panel_plan import LEAF, SOLVE, TOP, UPDATE, panel_plan
from mxpeak.layout.row_moves import local_moves, row_moves


def test_every_index_has_one_owner_and_one_local_index() -> None:
    for n, nb, P in product(range(14), (1, 2, 3, 5, 20), (1, 2, 3, 4)):
        parts = [BlockCyclic(n, nb, p, P) for p in range(P)]
        assert sum(part.local_size for part in parts) == n, (n, nb, P)
        for ig in range(n):
            owner = parts[0].owner(ig)
            il = parts[0].to_local(ig)
            assert parts[owner].to_global(il) == ig, (n, nb, P)
            assert 0 <= il < parts[owner].local_size, (n, nb, P)
        for part in parts:
            own = [part.to_global(il) for il in range(part.local_size)]
            assert own == sorted(own), (n, nb, P)
            for begin, end in product(range(n + 1), repeat=2):
                expected = [il for il, ig in enumerate(own) if begin <= ig < end]
                assert list(range(part.local_size))[part.local_range(begin, end)] == expected, (n, nb, P)


def test_numroc_is_scalapacks() -> None:
    assert [numroc(10, 3, p, 2) for p in (0, 1)] == [6, 4]
    assert numroc(0, 5, 0, 3) == 0


@given(n=st.integers(0, 60), nb=st.integers(1, 70), P=st.integers(1, 5), Q=st.integers(1, 5))
def test_steps_cover_all_columns_once(n: int, nb: int, P: int, Q: int) -> None:
    steps = lu_steps(n, nb, P, Q)
    assert [j for s in steps for j in range(s.j0, s.j1)] == list(range(n))
    assert all((s.p, s.q) == (s.k % P, s.k % Q) and 1 <= s.jb <= nb for s in steps)


@given(st.integers(0, 500), st.floats(0, 1), st.integers(1, 64))
def test_left_section_is_whole_blocks_and_right_the_rest(columns: int, fraction: float, nb: int) -> None:
    n2 = split_columns(columns, fraction, nb)
    assert 0 <= n2 <= columns
    assert n2 == 0 or n2 == columns or (columns - n2) % nb == 0
    if fraction == 0:
        assert n2 == 0
    else:
        assert abs(n2 - fraction * columns) <= nb


@given(st.data())
def test_row_moves_are_the_swaps_in_turn(data: st.DataObject) -> None:
    n, nb, P = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    j0 = data.draw(st.integers(0, (n - 1) // nb)) * nb
    jb = min(nb, n - j0)
    pivots = [data.draw(st.integers(j0 + i, n - 1)) for i in range(jb)]
    content = list(range(n))
    for i, pivot in enumerate(pivots):
        content[j0 + i], content[pivot] = content[pivot], content[j0 + i]

    moves = row_moves(j0, pivots)
    assert moves.into_u == content[j0 : j0 + jb]
    after = list(range(n))
    after[j0 : j0 + jb] = moves.into_u
    for target, block_row in zip(moves.out_to, moves.out_from):
        after[target] = j0 + block_row
    assert after == content

    gathered: dict[int, int] = {}
    for p in range(P):
        rows = BlockCyclic(n, nb, p, P)
        mine = local_moves(moves, j0, rows)
        gathered.update(zip(mine.u_rows[p], (rows.to_global(il) for il in mine.my_sources)))
        for target, block_row in zip(mine.my_targets, mine.out_rows[p]):
            assert content[rows.to_global(target)] == j0 + block_row
    assert [gathered[i] for i in range(jb)] == moves.into_u


@pytest.mark.parametrize("rfact", ["left", "crout", "right"])
@pytest.mark.parametrize(("jb", "nbmin", "ndiv"), [(1, 1, 2), (8, 8, 2), (37, 4, 2), (64, 3, 5), (10, 1, 20)])
def test_a_plan_brings_every_entry_up_to_date_before_its_column_is_factored(
    jb: int, nbmin: int, ndiv: int, rfact: str
) -> None:
    """Count the updates of every column: all columns to its left have updated it when its leaf begins."""
    below = [0] * jb  # updates of A's rows in this column
    u_rows = [[0] * jb for _ in range(jb)]  # u_rows[k][c]: whether row k of U is final in column c
    factored = 0
    for op in panel_plan(jb, nbmin, ndiv, rfact):
        if op.kind == LEAF:
            assert op.c0 == factored
            assert op.c1 - op.c0 <= nbmin
            assert all(below[c] == op.c0 for c in range(op.c0, op.c1))
            factored = op.c1
        elif op.kind == SOLVE:
            assert op.k1 <= factored
            for k, c in product(range(op.k0, op.k1), range(op.c0, op.c1)):
                u_rows[k][c] = 1
        elif op.kind == UPDATE:
            assert op.r0 == factored == op.k1
            for c in range(op.c0, op.c1):
                assert below[c] == op.k0
                assert all(u_rows[k][c] for k in range(op.k0, op.k1))
                below[c] += op.k1 - op.k0
        else:
            assert op.kind == TOP
            assert rfact == "crout"
    assert factored == jb


def test_jumps_are_repeated_steps() -> None:
    x = 100
    for steps in range(1, 50):
        x = (lcg.A1 * x + lcg.C1) & lcg.MASK
        assert lcg.state(100, steps) == x


#: Entries of the N = 5 system that Netlib HPL 2.3 generates with its own seed, printed with all their digits.
NETLIB = {
    (0, 0): "-0x1.b0d8f532d8p-15",
    (1, 0): "0x1.8959b2285d2a4p-2",
    (4, 0): "-0x1.d69e29ce38e5cp-2",
    (0, 1): "0x1.61ea60d43670fp-2",
    (2, 2): "0x1.29aa3e50e2534p-2",
    (0, 4): "0x1.317826003a7cp-7",
    (0, 5): "0x1.42ac7e1f31d0cp-2",
    (3, 5): "-0x1.d087ea1a9b5b6p-2",
    (4, 5): "-0x1.8a0fd69ec4b3p-5",
}


def test_entries_are_netlibs_to_the_last_bit() -> None:
    for (i, j), value in NETLIB.items():
        assert lcg.value(lcg.state(100, 1 + i + j * 5)) == float.fromhex(value), (i, j)
