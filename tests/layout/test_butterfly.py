"""Test that every index is at most once in a layer of a butterfly, with the same pairs on all ranks."""

from __future__ import annotations

import pytest

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.butterfly import half_lengths, has_partner, local_pairs, pairs

ORDERS = (1, 2, 3, 7, 16, 37, 64, 97)


@pytest.mark.parametrize("n", ORDERS)
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_each_index_with_a_partner_is_in_one_pair(n: int, depth: int) -> None:
    halves = half_lengths(n, depth)
    assert 2 * halves[-1] >= n, "the longest layer combines both halves of all indices"
    for nb in (1, 4, 5, 128):
        for h in halves:
            found = [(p.upper + k, p.lower + k) for p in pairs(n, h, nb) for k in range(p.count)]
            assert all(lower - upper == h and upper // h % 2 == 0 for upper, lower in found)
            together = [i for pair in found for i in pair]
            assert sorted(together) == [i for i in range(n) if has_partner(n, h, i)]
            assert all(p.upper // nb == (p.upper + p.count - 1) // nb for p in pairs(n, h, nb))
            assert all(p.lower // nb == (p.lower + p.count - 1) // nb for p in pairs(n, h, nb))


@pytest.mark.parametrize(("n", "nb", "P"), [(37, 4, 3), (97, 8, 2), (64, 16, 4), (7, 64, 3), (30, 3, 5)])
def test_ranks_agree_on_the_pairs_that_they_exchange(n: int, nb: int, P: int) -> None:
    lines = [BlockCyclic(n, nb, p, P) for p in range(P)]
    for h in half_lengths(n, 3):
        each = [local_pairs(line, h) for line in lines]
        here = set()
        for line, exchanged in zip(lines, each):
            for upper, lower in exchanged.local:
                for a, b in zip(range(upper.start, upper.stop), range(lower.start, lower.stop)):
                    here.add((line.to_global(a), line.to_global(b)))
            for q, own in exchanged.remote.items():
                theirs = each[q].remote[line.p]
                assert [of.stop - of.start for of, _ in own] == [of.stop - of.start for of, _ in theirs]
                for (of, is_upper), (other, other_is_upper) in zip(own, theirs):
                    assert is_upper != other_is_upper
                    if is_upper:
                        for a, b in zip(range(of.start, of.stop), range(other.start, other.stop)):
                            here.add((line.to_global(a), lines[q].to_global(b)))
        assert here == {(i, i + h) for i in range(n - h) if i // h % 2 == 0}
