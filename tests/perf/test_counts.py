"""Compare counts with loops that count, and memory with its budget."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.errors import ResourceError, UsageError
from mxpeak.perf.counts import hpl_flops, hpl_memory_bytes, largest_n, lu_flops, lu_flops_done, mxp_memory_bytes


def counted_lu_flops(n, columns):
    """Count the divisions and update flops of the first `columns` columns of an unblocked LU."""
    return sum((n - k) + 2 * (n - k) ** 2 for k in range(1, columns + 1))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 41, 100])
def test_lu_flops_are_those_of_the_textbook_loop(n):
    # 2/3 and 1/6 are rounded once each: a few roundoffs of the largest term.
    for columns in range(n + 1):
        assert lu_flops_done(n, n - columns) == pytest.approx(counted_lu_flops(n, columns), rel=1e-15, abs=n**3 * 4e-16)
    assert lu_flops(n) == lu_flops_done(n, 0)
    assert lu_flops_done(n, n) == 0


def test_hpl_credits_lu_and_two_triangular_solves_to_within_n_over_6():
    n = 1000
    exact = Fraction(counted_lu_flops(n, n)) + 2 * n * n  # n^2 per triangular solve
    assert hpl_flops(n) - float(exact) == pytest.approx(n / 6, rel=1e-6)


def test_hpl_flops_are_the_numbers_netlib_divides_by():
    assert hpl_flops(0) == 0
    assert hpl_flops(1000) == pytest.approx(668_166_666.6666667, rel=1e-15)


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 6), st.integers(1, 6))
def test_memory_covers_the_matrix_and_each_part_adds_up(n, nb, P, Q):
    memory = hpl_memory_bytes(n, nb, P, Q)
    assert memory["matrix"] >= 8 * n * (n + 1)
    assert memory["buffers"] > 0
    assert memory["total"] == memory["matrix"] + memory["buffers"]


def test_memory_of_one_rank_is_the_formula():
    assert hpl_memory_bytes(1000, 100, 1, 1) == {
        "matrix": 8 * 1000 * 1001,
        "buffers": 8 * (2 * 1000 * 100 + 3 * 100 * 1001),
        "total": 8 * (1000 * 1001 + 200 * 1000 + 300 * 1001),
    }
    assert hpl_memory_bytes(1000, 100, 1, 1, panels=3)["buffers"] == 8 * (3 * 1000 * 100 + 3 * 100 * 1001)


def test_panels_of_hpl_mxp_are_counted_twice_where_a_run_looks_ahead():
    def panels(ranks, **how):
        sides = -(-1000 // ranks) + 1000
        vectors = 8 * (64 * sides + 2000)
        return (mxp_memory_bytes(1000, 100, ranks, 1, **how)["buffers"] // ranks - vectors) / (4 * sides * 100)

    assert (panels(1), panels(2), panels(2, depth=0)) == (1, 2, 1)
    inverses = 16 * 100**2 * 10 / (4 * 2000 * 100)
    assert panels(1, background=True) == 2
    assert panels(1, background=True, inverses=True) == pytest.approx(2 + inverses)


@given(st.integers(100_000, 2**36), st.integers(1, 512), st.integers(1, 5), st.integers(1, 5))
def test_the_largest_n_fits_and_the_next_does_not(budget, nb, P, Q):
    if hpl_memory_bytes(1, nb, P, Q)["total"] > budget:
        with pytest.raises(ResourceError):
            largest_n(budget, nb, P, Q)
        return
    n = largest_n(budget, nb, P, Q)
    step = nb if n >= nb else 1
    assert n % step == 0
    assert hpl_memory_bytes(n, nb, P, Q)["total"] <= budget
    assert hpl_memory_bytes(n + step, nb, P, Q)["total"] > budget


def test_the_largest_n_nearly_fills_a_large_budget():
    budget = 64 * 2**30
    n = largest_n(budget, 192)
    assert n % 192 == 0
    assert 0.97 * budget < hpl_memory_bytes(n, 192, 1, 1)["total"] <= budget


def test_a_budget_for_nothing_says_what_one_row_needs():
    with pytest.raises(
        ResourceError, match=r"N = 1 with NB = 192 on 2x2 ranks needs \d+ bytes .* budget is 1000 bytes;"
    ):
        largest_n(1000, 192, 2, 2)
    with pytest.raises(ResourceError):
        largest_n(-5, 8)


def test_a_block_size_below_one_is_refused():
    with pytest.raises(UsageError, match="--nb 0"):
        largest_n(10**9, 0)
