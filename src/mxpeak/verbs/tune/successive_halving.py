"""Find the fastest candidate by successive halving, and check it against the defaults.

Search and check are functions of the rates that have been recorded, so an interrupted search can be continued.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

#: Rates of runs by candidate; 0 marks a run that failed or could not start.
Samples = Mapping[str, Sequence[float]]

#: Number of finalists, and number of runs per finalist.
FINALISTS, FINAL_RUNS = 2, 3
#: Divisor of the number of candidates per round: the fastest 1/KEPT enter the next round.
KEPT = 3


@dataclass(frozen=True, slots=True)
class NextRuns:
    """The runs of the current round in order, and the remaining candidates, fastest first."""

    batch: list[str]
    alive: list[str]


def next_turn(candidates: Sequence[str], samples: Samples) -> NextRuns:
    """Return the runs that the current round still needs, and the remaining candidates.

    Each remaining candidate has r runs after round r, and the fastest third enters round r + 1. A candidate that
    failed once is removed. The list of runs is empty if the search has ended.
    """
    alive, need = list(candidates), 1
    while True:
        alive = [candidate for candidate in alive if 0.0 not in samples.get(candidate, ())]
        lacking = {candidate: need - len(samples.get(candidate, ())) for candidate in alive}
        batch = [candidate for turn in range(need) for candidate in alive if lacking[candidate] > turn]
        if batch or not alive:
            return NextRuns(batch, ranked(alive, samples))
        alive = ranked(alive, samples)
        if len(alive) == 1 or (len(alive) <= FINALISTS and need >= FINAL_RUNS):
            return NextRuns([], alive)
        alive, need = alive[: max(FINALISTS, math.ceil(len(alive) / KEPT))], need + 1


def ranked(candidates: Sequence[str], samples: Samples) -> list[str]:
    """Sort candidates by median rate, fastest first; candidates with equal rates keep their order.

    Candidates without runs come last.
    """
    return sorted(candidates, key=lambda candidate: -median(samples[candidate]) if samples.get(candidate) else math.inf)


def max_runs(candidates: int) -> int:
    """Return the number of runs of a search with this many candidates if no run fails."""
    runs, need, alive = candidates, 1, candidates
    while alive > 1 and not (alive <= FINALISTS and need >= FINAL_RUNS):
        alive, need = max(min(FINALISTS, alive), math.ceil(alive / KEPT)), need + 1
        runs += alive
    return runs


#: Smallest number of pairs of runs in a check, and of runs of each side if the budget ends before the check.
MIN_PAIRS, MIN_RUNS = 3, 2


@dataclass(frozen=True, slots=True)
class WinnerCheck:
    """Rates of the defaults and of the fastest candidate in alternating runs after the search.

    spread     (largest - smallest rate) / median, for the defaults and for the candidate
    noise      half of the larger spread; a gain must exceed the noise
    complete   whether all pairs have run; otherwise the rates include those of the search
    verdict    faster | equal: no slower, within the noise | slower | failed: a run of the candidate did not pass |
               undecided: the check is not complete, and the difference is not clear
    """

    defaults: tuple[float, ...]
    tuned: tuple[float, ...]
    complete: bool = True

    @property
    def medians(self) -> tuple[float, float]:
        """Return the median rate of the defaults and the median rate of the candidate."""
        return median(self.defaults), median(self.tuned)

    @property
    def spreads(self) -> tuple[float, float]:
        """Return (largest - smallest rate) / median for the defaults and for the candidate."""
        first, second = (
            (max(rates) - min(rates)) / middle if (middle := median(rates)) else math.inf
            for rates in (self.defaults, self.tuned)
        )
        return first, second

    @property
    def noise(self) -> float:
        """Return half of the larger spread, as a fraction of the rate."""
        return max(self.spreads) / 2

    @property
    def gain(self) -> float:
        """Return the candidate's relative gain: its median divided by that of the defaults, minus one."""
        defaults, tuned = self.medians
        return tuned / defaults - 1.0 if defaults else (math.inf if tuned else 0.0)

    @property
    def verdict(self) -> str:
        """Return `faster`, `equal`, `slower`, `failed` or `undecided`."""
        if 0.0 in self.tuned:
            return "failed"
        if not self.complete:
            return "faster" if self.is_clear else "undecided"
        if 0.0 in self.defaults or self.gain > self.noise:
            return "faster"
        return "equal" if self.gain >= 0.0 else "slower"

    @property
    def is_clear(self) -> bool:
        """Return whether the runs of the candidate and of the defaults form two separate groups, the candidate faster.

        Each group needs MIN_RUNS runs. The gap between the groups must be larger than the range of each group. If
        both had the same distribution, two runs of each would pass this test in one of 18 cases: the right two of the
        four are the faster ones in one of six, and the middle of the three gaps is the largest in one of three.
        """
        groups = self.defaults, self.tuned
        if min(map(len, groups)) < MIN_RUNS:
            return False
        return min(self.tuned) - max(self.defaults) > max(max(rates) - min(rates) for rates in groups)

    @property
    def taken(self) -> bool:
        """Return whether the candidate is stored instead of the defaults. The candidate must not be slower."""
        return self.verdict in ("faster", "equal")

    def section(self) -> dict[str, object]:
        """Return the rates, gain, noise and verdict as a dictionary for JSON."""
        (a, b), (spread_a, spread_b) = self.medians, self.spreads
        finite = [value if math.isfinite(value) else None for value in (spread_a, spread_b, self.gain, self.noise)]
        return {
            "defaults": {"rates_flops": list(self.defaults), "median": a, "spread": finite[0]},
            "tuned": {"rates_flops": list(self.tuned), "median": b, "spread": finite[1]},
            "gain": finite[2],
            "noise": finite[3],
            "verdict": self.verdict,
            "complete": self.complete,
        }
