"""Which candidate is fastest, by few short runs: successive halving; and whether it really beats the defaults.

Both are functions of the rates measured so far, so a search that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

#: Rates of runs by candidate; 0 is one that failed its validation, or could not be run.
Samples = Mapping[str, Sequence[float]]

#: As many are left at the end, with as many runs each.
FINALISTS, FINAL_RUNS = 2, 3
#: One in so many goes on to the next round.
KEPT = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """What to run next, in this order, and who is still in the race, the fastest first."""

    batch: list[str]
    alive: list[str]


def next_turn(candidates: Sequence[str], samples: Samples) -> Turn:
    """Round r: r runs of all that are left, in turn; then the fastest third goes on.  No batch: the race is over.

    Whoever failed once is out: no setting wins that does not always pass.
    """
    alive, need = list(candidates), 1
    while True:
        alive = [one for one in alive if 0.0 not in samples.get(one, ())]
        lacking = {one: need - len(samples.get(one, ())) for one in alive}
        batch = [one for turn in range(need) for one in alive if lacking[one] > turn]
        if batch or not alive:
            return Turn(batch, ranked(alive, samples))
        alive = ranked(alive, samples)
        if len(alive) == 1 or (len(alive) <= FINALISTS and need >= FINAL_RUNS):
            return Turn([], alive)
        alive, need = alive[: max(FINALISTS, math.ceil(len(alive) / KEPT))], need + 1


def ranked(candidates: Sequence[str], samples: Samples) -> list[str]:
    """By the median of their rates, the fastest first; who came earlier wins a tie, and has not run comes last."""
    return sorted(candidates, key=lambda one: -median(samples[one]) if samples.get(one) else math.inf)


def most_runs(candidates: int) -> int:
    """How many runs a race of so many takes, if none fails."""
    runs, need, alive = candidates, 1, candidates
    while alive > 1 and not (alive <= FINALISTS and need >= FINAL_RUNS):
        alive, need = max(min(FINALISTS, alive), math.ceil(alive / KEPT)), need + 1
        runs += alive
    return runs


# --- the check --------------------------------------------------------------------------------------------------

#: Pairs of runs that a check needs.
LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Check:
    """The defaults against the fastest candidate, in runs that took turns and that the search has not seen.

    spread     (largest - smallest rate) / median, of each
    noise      half of the larger spread: what a gain has to exceed to be one
    verdict    faster | equal: no slower, within the noise | slower | failed: a run of the candidate did not pass
    """

    defaults: tuple[float, ...]
    tuned: tuple[float, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Of the defaults, and of the candidate."""
        return median(self.defaults), median(self.tuned)

    @property
    def spreads(self) -> tuple[float, float]:
        """Of the defaults, and of the candidate."""
        first, second = (
            (max(rates) - min(rates)) / middle if (middle := median(rates)) else math.inf
            for rates in (self.defaults, self.tuned)
        )
        return first, second

    @property
    def noise(self) -> float:
        """Half of the larger spread."""
        return max(self.spreads) / 2

    @property
    def gain(self) -> float:
        """The candidate's median over that of the defaults, less one."""
        defaults, tuned = self.medians
        return tuned / defaults - 1.0 if defaults else (math.inf if tuned else 0.0)

    @property
    def verdict(self) -> str:
        """What came out of it."""
        if 0.0 in self.tuned:
            return "failed"
        if 0.0 in self.defaults or self.gain > self.noise:
            return "faster"
        return "equal" if self.gain >= 0.0 else "slower"

    @property
    def taken(self) -> bool:
        """Whether the candidate is stored.  A slower one is not, even within the noise: nothing speaks for it."""
        return self.verdict in ("faster", "equal")

    def section(self) -> dict[str, object]:
        """As JSON has it."""
        (a, b), (spread_a, spread_b) = self.medians, self.spreads
        finite = [value if math.isfinite(value) else None for value in (spread_a, spread_b, self.gain, self.noise)]
        return {
            "defaults": {"rates_flops": list(self.defaults), "median": a, "spread": finite[0]},
            "tuned": {"rates_flops": list(self.tuned), "median": b, "spread": finite[1]},
            "gain": finite[2],
            "noise": finite[3],
            "verdict": self.verdict,
        }
