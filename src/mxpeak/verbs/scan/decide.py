"""Find slow ranks and ranks whose results differ from those of their peers.

Ranks are compared with ranks of the same kind, which have the same processor or device, number of threads and library.
For a group of R ranks with rates r(i, t) in K rounds t, and for each measure,

    x_i = median_t r(i, t)                       rate of rank i
    m   = median_i x_i                           rate of the group
    s   = 1.4826 median_i |x_i - m|              spread: equals the standard deviation for normal deviations, and
                                                 outliers in fewer than half of the ranks hardly change it
    slow: r(i, t) < m - max(3 s, tolerance·m)    in more than half of the rounds

The tolerance is a lower limit: if the rates agree to 0.1 %, a difference of 0.3 % is not a defect. With fewer than
four ranks, one outlier changes both m and s. The best x_i then replaces m, and s is the standard error of the
difference of two medians, estimated from the rank with the least spread over the rounds:

    s = 1.77 / sqrt(K) · 1.4826 min_i median_t |r(i, t) - x_i|

Half of the ranks change both m and s: if two of four are slow, s is about their deficit, and no rate is below m - 3 s.
Ranks agree only if s and all rates are within the tolerance. If a rank neither agrees nor is slow, the scan is
undecided:

    spread      s > tolerance·m                                   there is no typical rate
    scatter     x_i < m - tolerance·m, and rank i is not slow     s or the rates of the rounds spread too widely
    faster      r(i, t) > m + max(3 s, tolerance·m)               in more than half of the rounds: m may be slow itself

A result whose scaled residual is not below HPL's threshold in a round is wrong, even if it has no peers. The correct
bits of a result are those of the majority of the ranks that pass this check and whose bits are equal in all rounds.

A baseline contains m and s of many healthy ranks of the same model, and the bits of their results. With a baseline, a
rank is compared with the baseline instead of with its peers: m and s are those of the baseline, and no rank is too
fast.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median

from mxpeak.bench.hpl.config import THRESHOLD

#: Ratio of the standard deviation to the median absolute deviation of a normal distribution.
SIGMA = 1.4826
#: The standard error of the difference of two medians of K normal numbers is sqrt(2) sqrt(pi/2 / K) = ERROR / sqrt(K).
ERROR = math.sqrt(math.pi)
#: Number of standard deviations below the median from which a rank is slow. One healthy rank of 741 is below it.
FACTOR = 3.0
#: Smallest number of ranks for which median and spread tolerate one outlier.
ENOUGH = 4


@dataclass(frozen=True, slots=True)
class RankRates:
    """The measurements of one rank: rates by measure, digests of the bits and residuals by result, all by round."""

    rank: int
    kind: str
    rates: Mapping[str, Sequence[float]]
    bits: Mapping[str, Sequence[str]]
    residuals: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def fails(self, result: str) -> bool:
        """Return whether HPL's check of a result fails in a round."""
        return not all(residual < THRESHOLD for residual in self.residuals.get(result, ()))


@dataclass(frozen=True, slots=True)
class Expected:
    """The measurements that a baseline expects of a rank.

    rates    m and s per measure
    bits     digest of the correct bits per result; empty if the baseline was measured with another library
    """

    rates: Mapping[str, tuple[float, float]]
    bits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of one measure over the ranks of a group, computed from the median of each rank over the rounds.

    against    the reference: `median`, `best`, `baseline`, or None if there are no other ranks
    sigma      spread s
    least      lowest rate that is not slow
    expected   m of the baseline, or None without a baseline
    """

    best: float
    median: float
    worst: float
    against: str | None = None
    sigma: float | None = None
    least: float | None = None
    expected: float | None = None

    @property
    def reference(self) -> float:
        """Return the reference rate: that of a baseline, the median of the ranks, or the best rate in a small group."""
        if self.expected is not None:
            return self.expected
        return self.best if self.against == "best" else self.median


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A slow rank. `share` is its median divided by the reference, and `rounds` is the number of slow rounds."""

    rank: int
    measure: str
    rate: float
    share: float
    rounds: int


@dataclass(frozen=True, slots=True)
class WrongBits:
    """A rank with a wrong result.

    reason    the `residual` is too large, or the bits `differ` from the majority, differ from the `baseline`, or
              `change` between rounds
    """

    rank: int
    result: str
    reason: str


@dataclass(frozen=True, slots=True)
class UndecidedBits:
    """A result whose correct bits are unknown: there is `no majority`, or the bits `change` on most ranks."""

    kind: str
    result: str
    reason: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UndecidedRates:
    """Ranks that may or may not be slow in a measure.

    reason    `spread`, `scatter` or `faster`
    spread    s as a share of the reference
    share     rate of the rank that differs most, as a share of the reference
    """

    kind: str
    measure: str
    reason: str
    ranks: tuple[int, ...]
    spread: float
    share: float


@dataclass(frozen=True, slots=True)
class PeerGroup:
    """Ranks of the same kind, and the spread of each measure over these ranks."""

    kind: str
    ranks: tuple[int, ...]
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The slow, wrong and undecided ranks that a scan found."""

    groups: Sequence[PeerGroup]
    slow: Sequence[SlowRank]
    wrong: Sequence[WrongBits]
    undecided: Sequence[UndecidedBits | UndecidedRates]

    @property
    def status(self) -> str:
        """Return `different` if a rank is slow or wrong, `undecided` if a measure is undecided, otherwise `alike`."""
        if self.slow or self.wrong:
            return "different"
        return "undecided" if self.undecided else "alike"

    @property
    def outliers(self) -> list[int]:
        """Return the ranks that are slow or wrong."""
        return sorted({finding.rank for finding in self.slow} | {finding.rank for finding in self.wrong})


def decide(ranks: Sequence[RankRates], tolerance: float, baseline: Mapping[str, Expected] | None = None) -> Verdict:
    """Compare the ranks of each kind, and return the slow, wrong and undecided ranks.

    `baseline` contains the expected measurements by kind. Ranks of these kinds are compared with the baseline.
    """
    by_kind: dict[str, list[RankRates]] = {}
    for rank in ranks:
        by_kind.setdefault(rank.kind, []).append(rank)
    groups: list[PeerGroup] = []
    slow: list[SlowRank] = []
    wrong: list[WrongBits] = []
    undecided: list[UndecidedBits | UndecidedRates] = []
    for kind, members in by_kind.items():
        measures, expected = members[0].rates, (baseline or {}).get(kind)
        spreads = {name: spread([rank.rates[name] for rank in members], tolerance) for name in measures}
        if expected is not None:
            known = {name: spreads[name] for name in measures if name in expected.rates}
            spreads |= {name: against(own, *expected.rates[name], tolerance) for name, own in known.items()}
        groups.append(PeerGroup(kind, tuple(rank.rank for rank in members), spreads))
        for measure, measured in spreads.items():
            slow_here = slow_ranks(members, measure, measured)
            slow += slow_here
            undecided += unclear(members, measure, measured, tolerance, {finding.rank for finding in slow_here})
        for result in members[0].bits:
            correct = None if expected is None else expected.bits.get(result)
            wrong += [WrongBits(member.rank, result, "residual") for member in members if member.fails(result)]
            passing = [member for member in members if not member.fails(result)]
            odd, open_question = (
                odd_bits(passing, result) if correct is None else (wrong_bits(passing, result, correct), [])
            )
            wrong += odd
            undecided += open_question
    by_rank = attrgetter("rank")
    return Verdict(groups, sorted(slow, key=by_rank), sorted(wrong, key=by_rank), undecided)


def spread(rates: Sequence[Sequence[float]], tolerance: float) -> Spread:
    """Return the spread of a measure over the ranks, with the lowest rate that is not slow.

    `rates` contains the rates of all rounds, per rank.
    """
    of_ranks = [median(rounds) for rounds in rates]
    best, middle, worst = max(of_ranks), median(of_ranks), min(of_ranks)
    if len(of_ranks) == 1:
        return Spread(best, middle, worst)
    if len(of_ranks) >= ENOUGH:
        sigma = SIGMA * deviation(of_ranks)
        return Spread(best, middle, worst, "median", sigma, middle - max(FACTOR * sigma, tolerance * middle))
    sigma = ERROR / math.sqrt(len(rates[0])) * SIGMA * min(map(deviation, rates))
    return Spread(best, middle, worst, "best", sigma, best - max(FACTOR * sigma, tolerance * best))


def against(own: Spread, expected: float, sigma: float, tolerance: float) -> Spread:
    """Return the spread of a measure with the reference and the lowest rate of a baseline."""
    least = expected - max(FACTOR * sigma, tolerance * expected)
    return Spread(own.best, own.median, own.worst, "baseline", sigma, least, expected)


def deviation(values: Sequence[float]) -> float:
    """Return the median absolute deviation of the values from their median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def slow_ranks(members: Sequence[RankRates], measure: str, measured: Spread) -> list[SlowRank]:
    """Return the ranks of a group whose rate in a measure is too low in more than half of the rounds."""
    slow: list[SlowRank] = []
    if measured.least is None:
        return slow
    for member in members:
        rates = member.rates[measure]
        below = sum(rate < measured.least for rate in rates)
        if 2 * below > len(rates):
            rate = median(rates)
            slow.append(SlowRank(member.rank, measure, rate, rate / measured.reference, below))
    return slow


def unclear(
    members: Sequence[RankRates], measure: str, measured: Spread, tolerance: float, slow: Collection[int]
) -> list[UndecidedRates]:
    """Return the reasons why a measure does not decide whether ranks are slow; empty if the ranks agree.

    `slow` contains the ranks that are known to be slow.
    """
    if (sigma := measured.sigma) is None:
        return []
    reference = measured.reference
    above = reference + max(FACTOR * sigma, tolerance * reference)
    middle = {member.rank: median(member.rates[measure]) for member in members if member.rank not in slow}

    def because(reason: str, ranks: Sequence[int]) -> list[UndecidedRates]:
        if not ranks:
            return []
        share = max((middle[rank] / reference for rank in ranks), key=lambda share: abs(share - 1.0))
        return [UndecidedRates(members[0].kind, measure, reason, tuple(ranks), sigma / reference, share)]

    scattered = [rank for rank, rate in middle.items() if rate < reference - tolerance * reference]
    if measured.expected is not None:
        return because("scatter", scattered)
    if sigma > tolerance * reference:
        return because("spread", list(middle))
    faster = [
        member.rank
        for member in members
        if 2 * sum(rate > above for rate in member.rates[measure]) > len(member.rates[measure])
    ]
    return because("scatter", scattered) + because("faster", faster)


def odd_bits(members: Sequence[RankRates], result: str) -> tuple[list[WrongBits], list[UndecidedBits]]:
    """Return the ranks whose bits change or differ from the majority, and the result if its correct bits are unknown.

    If the bits change on most ranks, the computation is not reproducible, and no rank is faulty.
    """
    if not members:
        return [], []
    kind = members[0].kind
    steady = {member.rank: member.bits[result][0] for member in members if len(set(member.bits[result])) == 1}
    changing = tuple(member.rank for member in members if member.rank not in steady)
    if len(changing) > 1 and 2 * len(changing) > len(members):
        return [], [UndecidedBits(kind, result, "change", changing)]
    wrong = [WrongBits(rank, result, "change") for rank in changing]
    if not steady:
        return wrong, []
    bits, count = Counter(steady.values()).most_common(1)[0]
    if 2 * count <= len(steady):
        return wrong, [UndecidedBits(kind, result, "no majority", tuple(steady))]
    return wrong + [WrongBits(rank, result, "differ") for rank, own in steady.items() if own != bits], []


def wrong_bits(members: Sequence[RankRates], result: str, correct: str) -> list[WrongBits]:
    """Return the ranks whose bits change between rounds or differ from the correct bits."""
    changing = [member.rank for member in members if len(set(member.bits[result])) > 1]
    others = [member for member in members if member.rank not in changing and member.bits[result][0] != correct]
    wrong = [WrongBits(rank, result, "change") for rank in changing]
    return wrong + [WrongBits(member.rank, result, "baseline") for member in others]
