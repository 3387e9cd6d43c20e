"""Test the decisions of scans about slow and faulty ranks, for every position and pattern of small invented scans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product

import pytest

from mxpeak.verbs.scan.decide import (
    ENOUGH,
    FACTOR,
    SIGMA,
    RankRates,
    UndecidedRates,
    Verdict,
    decide,
    deviation,
    spread,
)

TOLERANCE = 0.05


def ranks_of(rates: Sequence[Sequence[float]], kind: str = "k") -> list[RankRates]:
    """Return one rank per row of rates, all with the same results."""
    return [RankRates(rank, kind, {"lu": row}, {"lu": ["a"] * len(row)}) for rank, row in enumerate(rates)]


def slow(rates: Sequence[Sequence[float]], tolerance: float = TOLERANCE) -> list[int]:
    return [found.rank for found in decide(ranks_of(rates), tolerance).slow]


def of_bits(*bits: str) -> Verdict:
    """Return the verdict on ranks whose results are given by one word per rank and one letter per round."""
    return decide([RankRates(r, "k", {"lu": [1.0] * len(b)}, {"lu": list(b)}) for r, b in enumerate(bits)], TOLERANCE)


@pytest.mark.parametrize("ranks", range(1, 10))
def test_ranks_that_are_alike_are(ranks: int) -> None:
    verdict = decide(ranks_of([[100.0, 101.0, 99.0]] * ranks), TOLERANCE)
    assert verdict.status == "alike"
    assert verdict.outliers == []


@pytest.mark.parametrize("ranks", range(2, 10))
def test_one_slow_rank_is_named_wherever_it_is_and_whatever_the_unit(ranks: int) -> None:
    for rank, share, unit in product(range(ranks), (0.5, 0.9), (1e-9, 1.0, 1e15)):
        rates = [[unit * (100.0 + 0.1 * r), unit * 100.0, unit * 100.2] for r in range(ranks)]
        rates[rank] = [share * rate for rate in rates[rank]]
        verdict = decide(ranks_of(rates), TOLERANCE)
        assert [outlier.rank for outlier in verdict.slow] == verdict.outliers == [rank]
        (outlier,) = verdict.slow
        assert (outlier.measure, outlier.rounds) == ("lu", 3)
        assert outlier.share == pytest.approx(share, rel=0.02)
        assert slow(rates, tolerance=0.6) == []


@pytest.mark.parametrize("ranks", range(2, 8))
def test_the_tolerance_is_a_floor_and_what_is_on_it_is_not_slow(ranks: int) -> None:
    for rate, expected in ((96.0, []), (95.0, []), (94.999, [0])):
        assert slow([[rate]] + [[100.0]] * (ranks - 1)) == expected


@pytest.mark.parametrize("ranks", range(ENOUGH, 9))
def test_fewer_than_half_of_the_ranks_are_named_whichever_they_are(ranks: int) -> None:
    for count in range((ranks + 1) // 2):
        for chosen in combinations(range(ranks), count):
            assert slow([[50.0 if rank in chosen else 100.0] for rank in range(ranks)]) == list(chosen)


def open_questions(rates: Sequence[Sequence[float]]) -> list[tuple[str, tuple[int, ...]]]:
    """The reasons why rates leave open which ranks are slow, with the ranks concerned."""
    verdict = decide(ranks_of(rates), TOLERANCE)
    assert (verdict.status == "undecided") == (bool(verdict.undecided) and not verdict.slow)
    return [(found.reason, found.ranks) for found in verdict.undecided if isinstance(found, UndecidedRates)]


def test_two_slow_ranks_of_four_are_not_alike_but_undecided() -> None:
    for chosen in combinations(range(4), 2):
        verdict = decide(ranks_of([[76.0 if rank in chosen else 100.0] * 5 for rank in range(4)]), TOLERANCE)
        assert (verdict.status, verdict.slow) == ("undecided", [])
        (undecided,) = verdict.undecided
        assert isinstance(undecided, UndecidedRates)
        assert (undecided.reason, undecided.ranks) == ("spread", (0, 1, 2, 3))
        assert undecided.spread == pytest.approx(SIGMA * 12 / 88)


@pytest.mark.parametrize("ranks", range(ENOUGH, 12))
def test_a_scan_whose_ranks_differ_beyond_the_tolerance_is_never_alike(ranks: int) -> None:
    for count, share in product(range(1, ranks), (0.5, 0.76, 0.9)):
        rates = [[100.0 * share if rank < count else 100.0] * 3 for rank in range(ranks)]
        verdict = decide(ranks_of(rates), TOLERANCE)
        assert verdict.status == ("different" if 2 * count < ranks else "undecided"), (count, share)


def test_where_most_ranks_are_slow_the_others_are_too_fast() -> None:
    assert open_questions([[76.0]] * 3 + [[100.0]] * 2) == [("faster", (3, 4))]
    assert open_questions([[100.0]] * 3 + [[104.9]] * 2) == []


def test_a_rank_beyond_the_tolerance_that_the_spread_may_explain_is_undecided() -> None:
    assert open_questions([[100.0], [98.0], [95.0], [90.0]]) == [("scatter", (3,))]
    assert open_questions([[100.0], [98.0], [95.0], [93.0]]) == []
    assert open_questions([[50.0, 100.0]] + [[100.0] * 2] * 4) == [("scatter", (0,))], "half of its rounds are slow"


def test_rounds_that_vary_too_much_decide_nothing() -> None:
    noisy = [[80.0, 100.0, 120.0]] * 2
    assert open_questions(noisy) == [("spread", (0, 1))]
    assert open_questions([row * 100 for row in noisy]) == []
    assert open_questions([[97.0, 100.0, 103.0], [91.0, 94.0, 97.0]]) == [("scatter", (1,))]


def test_a_named_slow_rank_is_no_open_question() -> None:
    assert open_questions([[50.0]] + [[100.0]] * 3) == []
    verdict = decide(ranks_of([[60.0], [90.0], [95.0], [100.0], [105.0], [110.0]]), TOLERANCE)
    assert verdict.status == "different"
    ((found),) = verdict.undecided
    assert isinstance(found, UndecidedRates)
    assert (found.reason, found.ranks) == ("spread", (1, 2, 3, 4, 5))


@pytest.mark.parametrize("rounds", range(1, 7))
def test_a_rank_is_slow_if_it_is_so_in_more_than_half_of_the_rounds(rounds: int) -> None:
    for pattern in product((50.0, 100.0), repeat=rounds):
        count = pattern.count(50.0)
        verdict = decide(ranks_of([pattern] + [[100.0] * rounds] * 4), TOLERANCE)
        assert [found.rank for found in verdict.slow] == ([0] if 2 * count > rounds else [])
        assert [found.rounds for found in verdict.slow] == [count] * (2 * count > rounds)


def test_a_wide_spread_widens_what_is_allowed() -> None:
    rates = [[90.0], [95.0], [100.0], [105.0], [110.0]]
    assert slow(rates) == []
    assert slow([*rates, [60.0]]) == [5]


def test_the_arithmetic_of_the_documentation() -> None:
    distribution = spread([[97.0], [99.0], [100.0], [101.0], [70.0]], TOLERANCE)
    assert (distribution.best, distribution.median, distribution.worst, distribution.against) == (
        101.0,
        99.0,
        70.0,
        "median",
    )
    assert distribution.sigma == pytest.approx(1.4826 * 2.0)
    assert distribution.least == pytest.approx(99.0 - 3 * 1.4826 * 2.0)


def test_of_few_ranks_the_spread_is_that_of_the_rounds_and_shrinks_with_their_number() -> None:
    for ranks in (2, 3):
        noisy = [[80.0, 100.0, 120.0]] * ranks
        distribution = spread(noisy, TOLERANCE)
        assert distribution.against == "best"
        assert distribution.sigma == pytest.approx(math.sqrt(math.pi / 3) * SIGMA * 20.0)
        assert distribution.least == pytest.approx(100.0 - FACTOR * (distribution.sigma or 0.0))
        assert spread([row * 4 for row in noisy], TOLERANCE).sigma == pytest.approx((distribution.sigma or 0.0) / 2)
    assert slow([[99.0, 100.0, 101.0], [20.0, 50.0, 90.0]]) == [1], "its own unrest is no excuse"
    rates = [[80.0, 100.0, 120.0], [60.0, 75.0, 90.0]]
    assert slow(rates) == [], "three rounds that differ by a fifth do not tell a quarter from chance"
    assert slow([row * 16 for row in rates]) == [1]


def test_a_single_rank_has_no_deviation() -> None:
    found = spread([[1.0, 9.0]], TOLERANCE)
    assert (found.against, found.sigma, found.least) == (None, None, None)


def test_the_deviation_is_the_median_distance() -> None:
    assert deviation([1.0, 2.0, 4.0, 100.0]) == 1.5
    assert deviation([3.0]) == 0.0


def test_kinds_are_not_compared_with_each_other() -> None:
    old = ranks_of([[50.0]] * 4, "old")
    new = [RankRates(4 + r, "new", {"lu": [100.0]}, {"lu": ["b"]}) for r in range(4)]
    verdict = decide([*old, *new], TOLERANCE)
    assert verdict.status == "alike"
    assert [(group.kind, group.ranks) for group in verdict.groups] == [("old", (0, 1, 2, 3)), ("new", (4, 5, 6, 7))]


def test_each_measure_has_its_own_verdict() -> None:
    ranks = [RankRates(r, "k", {"lu": [100.0 - 50 * (r == 1)], "read": [9.0 - 5 * (r == 2)]}, {}) for r in range(5)]
    assert [(found.rank, found.measure) for found in decide(ranks, TOLERANCE).slow] == [(1, "lu"), (2, "read")]


@pytest.mark.parametrize("ranks", range(1, 6))
def test_ranks_that_differ_from_a_majority_are_wrong_and_without_one_none_is(ranks: int) -> None:
    for bits in product("abc", repeat=ranks):
        verdict = of_bits(*(letter * 2 for letter in bits))
        right = [letter for letter, count in Counter(bits).items() if count > ranks / 2]
        if right:
            assert verdict.undecided == []
            expected = [(rank, "lu", "differ") for rank in range(ranks) if bits[rank] != right[0]]
            assert [(finding.rank, finding.result, finding.reason) for finding in verdict.wrong] == expected
        else:
            assert verdict.wrong == []
            assert [finding.reason for finding in verdict.undecided] == ["no majority"]
            assert verdict.status == "undecided"


@pytest.mark.parametrize(
    ("bits", "wrong"),
    [
        (("aa", "ab"), {1: "change"}),
        (("ab",), {0: "change"}),
        (("aa", "aa", "ab"), {2: "change"}),
        (("aa", "bb", "aa", "ab"), {1: "differ", 3: "change"}),
        (("aa", "ab", "ba", "aa"), {1: "change", 2: "change"}),
    ],
)
def test_bits_that_change_between_rounds_are_wrong_and_have_no_vote(
    bits: tuple[str, ...], wrong: dict[int, str]
) -> None:
    verdict = of_bits(*bits)
    assert {found.rank: found.reason for found in verdict.wrong} == wrong
    assert verdict.undecided == []


@pytest.mark.parametrize("bits", [("ab", "ba"), ("ab", "ba", "aa"), ("ab", "ac", "ad", "aa")])
def test_results_that_change_on_most_ranks_are_undecided(bits: tuple[str, ...]) -> None:
    verdict = of_bits(*bits)
    assert verdict.wrong == []
    ((found),) = verdict.undecided
    assert found.reason == "change"
    assert found.ranks == tuple(rank for rank, letters in enumerate(bits) if len(set(letters)) > 1)
