"""Test successive halving with invented rates, and the verdict of the check with noise."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.verbs.tune.successive_halving import FINAL_RUNS, FINALISTS, WinnerCheck, max_runs, next_turn, ranked

NAMES = [f"c{k}" for k in range(12)]


def race(names: list[str], rate_of: dict[str, float], limit: int = 10_000) -> tuple[list[str], dict[str, list[float]]]:
    """Run rounds until no candidate is left to run; return the remaining candidates and all samples."""
    samples: dict[str, list[float]] = {}
    for _ in range(limit):
        turn = next_turn(names, samples)
        if not turn.batch:
            return turn.alive, samples
        for name in turn.batch:
            samples.setdefault(name, []).append(rate_of[name])
    raise AssertionError("the race does not end")


def test_the_fastest_of_invented_rates_wins_and_the_slow_run_once() -> None:
    rates = {name: 10.0 + k for k, name in enumerate(NAMES)}
    alive, samples = race(NAMES, rates)
    assert alive[0] == "c11"
    assert len(alive) <= FINALISTS
    assert len(samples["c0"]) == 1
    assert len(samples["c11"]) == FINAL_RUNS
    assert sum(map(len, samples.values())) == max_runs(len(NAMES))


@given(st.lists(st.floats(1.0, 1e15), min_size=1, max_size=40))
def test_any_rates_end_with_the_fastest_in_front(rates: list[float]) -> None:
    names = [f"c{k}" for k in range(len(rates))]
    alive, samples = race(names, dict(zip(names, rates)))
    assert rates[names.index(alive[0])] == max(rates)
    assert sum(map(len, samples.values())) <= max_runs(len(names))


def test_repeats_alternate() -> None:
    names = ["a", "b"]
    assert next_turn(names, {}).batch == ["a", "b"]
    assert next_turn(names, {"a": [1.0]}).batch == ["b"]
    assert next_turn(names, {"a": [1.0], "b": [2.0]}).batch == ["b", "a"]


def test_who_fails_once_is_out_however_fast() -> None:
    samples = {"a": [1.0], "b": [100.0, 0.0], "c": [2.0]}
    assert "b" not in next_turn(["a", "b", "c"], samples).alive
    assert next_turn(["a", "b"], {"a": [0.0], "b": [0.0]}).alive == []


def test_a_race_goes_on_where_it_was_stopped() -> None:
    rates = {name: 10.0 + k for k, name in enumerate(NAMES)}
    _, whole = race(NAMES, rates)
    for done in range(max_runs(len(NAMES))):
        samples: dict[str, list[float]] = {}
        for _ in range(done):  # as many runs as time allows
            name = next_turn(NAMES, samples).batch[0]
            samples.setdefault(name, []).append(rates[name])
        while batch := next_turn(NAMES, samples).batch:
            samples.setdefault(batch[0], []).append(rates[batch[0]])
        assert samples == whole, done


def test_ties_are_won_by_the_first_and_the_unknown_is_last() -> None:
    assert ranked(["a", "b", "c"], {"b": [1.0], "c": [1.0]}) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("defaults", "tuned", "verdict", "taken"),
    [
        ([100, 101, 99], [120, 121, 119], "faster", True),
        ([100, 110, 90], [104, 96, 111], "equal", True),
        ([100, 110, 90], [96, 104, 90], "slower", False),
        ([100, 101, 99], [80, 81, 79], "slower", False),
        ([100, 101, 99], [100, 101, 99], "equal", True),
        ([100, 101, 99], [200, 0.0, 210], "failed", False),
        ([100, 0.0, 99], [80, 81, 79], "faster", True),
        ([0.0, 0.0, 0.0], [80, 81, 79], "faster", True),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], "failed", False),
    ],
)
def test_the_check_takes_what_is_no_slower(
    defaults: list[float], tuned: list[float], verdict: str, taken: bool
) -> None:
    check = WinnerCheck(tuple(defaults), tuple(tuned))
    assert (check.verdict, check.taken) == (verdict, taken)


@given(st.lists(st.floats(1.0, 1e6), min_size=3, max_size=7), st.lists(st.floats(1.0, 1e6), min_size=3, max_size=7))
def test_what_is_taken_is_never_slower_by_its_median(defaults: list[float], tuned: list[float]) -> None:
    check = WinnerCheck(tuple(defaults), tuple(tuned))
    first, second = check.medians
    assert check.taken == (second >= first)
    assert check.noise >= 0.0


def test_one_disturbed_run_of_three_does_not_decide() -> None:
    for order in itertools.permutations([120.0, 121.0, 20.0]):
        assert WinnerCheck((100.0, 101.0, 99.0), order).taken


@pytest.mark.parametrize(
    ("defaults", "tuned", "verdict"),
    [
        ([100, 101], [250, 260], "faster"),
        ([100, 101], [110, 102], "undecided"),  # the gap of 1 is smaller than the range of 8
        ([100, 110], [121, 122], "faster"),
        ([100, 110], [119, 122], "undecided"),
        ([100], [250, 260], "undecided"),  # one run has no range
        ([100, 101], [250], "undecided"),
        ([250, 260], [100, 101], "undecided"),
        ([100, 101], [250, 0.0], "failed"),
        ([200, 0.0], [250, 260], "undecided"),
    ],
)
def test_an_incomplete_check_takes_only_a_clear_difference(
    defaults: list[float], tuned: list[float], verdict: str
) -> None:
    check = WinnerCheck(tuple(defaults), tuple(tuned), complete=False)
    assert (check.verdict, check.taken) == (verdict, verdict == "faster")
    assert check.section()["complete"] is False


def test_a_section_has_no_infinity() -> None:
    section = WinnerCheck((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)).section()
    assert section["gain"] is None
    numbers = [value for part in section.values() if isinstance(part, dict) for value in part.values()]
    assert all(math.isfinite(value) for value in numbers if isinstance(value, float))
