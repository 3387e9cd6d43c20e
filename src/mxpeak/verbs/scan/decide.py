"""Who is slow and who computes other bits than their sisters: a pure function of what all ranks measured.

Ranks are compared with those of their kind: the same processor or device, as many threads, the same library.  In a
group of R ranks with rates r(i, t) in K rounds t, for each measure

    x_i = median_t r(i, t)                       one rank's rate
    m   = median_i x_i                           the group's
    s   = 1.4826 median_i |x_i - m|              its spread: for normal deviations the standard one, and outliers in
                                                 fewer than half of the ranks do not move it far
    slow: r(i, t) < m - max(3 s, tolerance·m)    in more than half of the rounds

The tolerance is a floor: where ranks are alike to a thousandth, three thousandths are no defect.  Of fewer than four
ranks one outlier moves both m and s.  The best x_i then takes the place of m, and s is the standard error of the
difference of two medians, from how the rates of the steadiest rank spread over the rounds:

    s = 1.77 / sqrt(K) · 1.4826 min_i median_t |r(i, t) - x_i|

Half of the ranks move both m and s: if two of four are slow, s is about their deficit, and none is below m - 3 s.
Ranks are alike only if s and all ranks are within the tolerance.  What is neither alike nor slow is undecided:

    spread      s > tolerance·m                                   there is no typical rate
    scatter     x_i < m - tolerance·m, and rank i is not slow     s or the rounds are too wide to tell
    faster      r(i, t) > m + max(3 s, tolerance·m)               in more than half of the rounds: m may be slow itself

Bits are right where more than half of those ranks have them whose bits are the same in every round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

#: The median of |x| is 1/1.4826 of the standard deviation for a normal distribution.
SIGMA = 1.4826
#: A median of K normal numbers has the standard error sqrt(pi/2 / K), the difference of two of them sqrt(2) times that.
ERROR = math.sqrt(math.pi)
#: How many standard deviations below the median are slow: one healthy rank of 741.
FACTOR = 3.0
#: From so many ranks on, median and spread withstand one outlier.
ENOUGH = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """What one rank measured: of each measure a rate a round, of each result its bits a round."""

    rank: int
    kind: str
    rates: Mapping[str, Sequence[float]]
    bits: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Spread:
    """One measure over the ranks of a group: their medians over the rounds.

    against    what a rank is compared with: the `median`, or the `best`; None: nobody is there to compare it with
    sigma      the spread that counts
    least      what is below is slow
    """

    best: float
    median: float
    worst: float
    against: str | None = None
    sigma: float | None = None
    least: float | None = None

    @property
    def reference(self) -> float:
        """The rate that a rank is compared with."""
        return self.best if self.against == "best" else self.median


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that is slow in a measure: its own median, as a share of the reference, and in how many rounds."""

    rank: int
    measure: str
    rate: float
    share: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """A rank whose bits of a result `differ` from the majority's, or `change` between rounds."""

    rank: int
    result: str
    reason: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """A result whose bits differ, and nobody can say whose are right: `no majority`, or they `change` on most ranks."""

    kind: str
    result: str
    reason: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unclear:
    """Ranks of which a measure leaves open whether they are slow.

    reason    `spread`, `scatter` or `faster`
    spread    s as a share of the reference
    share     the rate of the rank that differs most, as a share of the reference
    """

    kind: str
    measure: str
    reason: str
    ranks: tuple[int, ...]
    spread: float
    share: float


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a kind, and how each measure spreads over them."""

    kind: str
    ranks: tuple[int, ...]
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, by rank."""

    groups: Sequence[Group]
    slow: Sequence[Slow]
    wrong: Sequence[Wrong]
    undecided: Sequence[Undecided | Unclear]

    @property
    def status(self) -> str:
        """`different` if a rank is slow or wrong, `undecided` if none can be named but some may be, else `alike`."""
        if self.slow or self.wrong:
            return "different"
        return "undecided" if self.undecided else "alike"

    @property
    def outliers(self) -> list[int]:
        """The ranks that are slow or wrong."""
        return sorted({one.rank for one in self.slow} | {one.rank for one in self.wrong})


def decide(ranks: Sequence[Measured], tolerance: float) -> Verdict:
    """Who is slow, and who computes other bits."""
    by_kind: dict[str, list[Measured]] = {}
    for one in ranks:
        by_kind.setdefault(one.kind, []).append(one)
    groups: list[Group] = []
    slow: list[Slow] = []
    wrong: list[Wrong] = []
    undecided: list[Undecided | Unclear] = []
    for kind, members in by_kind.items():
        spreads = {measure: spread([one.rates[measure] for one in members], tolerance) for measure in members[0].rates}
        groups.append(Group(kind, tuple(one.rank for one in members), spreads))
        for measure, found in spreads.items():
            named = slow_ranks(members, measure, found)
            slow += named
            undecided += unclear(members, measure, found, tolerance, {one.rank for one in named})
        for result in members[0].bits:
            odd, open_question = odd_bits(members, result)
            wrong += odd
            undecided += open_question
    return Verdict(groups, sorted(slow, key=lambda one: one.rank), sorted(wrong, key=lambda one: one.rank), undecided)


def spread(rates: Sequence[Sequence[float]], tolerance: float) -> Spread:
    """How rates, of each rank in each round, spread over the ranks, and below what is slow."""
    of_ranks = [median(rounds) for rounds in rates]
    best, middle, worst = max(of_ranks), median(of_ranks), min(of_ranks)
    if len(of_ranks) == 1:
        return Spread(best, middle, worst)
    if len(of_ranks) >= ENOUGH:
        sigma = SIGMA * deviation(of_ranks)
        return Spread(best, middle, worst, "median", sigma, middle - max(FACTOR * sigma, tolerance * middle))
    sigma = ERROR / math.sqrt(len(rates[0])) * SIGMA * min(map(deviation, rates))
    return Spread(best, middle, worst, "best", sigma, best - max(FACTOR * sigma, tolerance * best))


def deviation(values: Sequence[float]) -> float:
    """The median of the distances from the median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def slow_ranks(members: Sequence[Measured], measure: str, found: Spread) -> list[Slow]:
    """The ranks that are slow in more than half of the rounds."""
    slow: list[Slow] = []
    if found.least is None:
        return slow
    for one in members:
        rates = one.rates[measure]
        below = sum(rate < found.least for rate in rates)
        if 2 * below > len(rates):
            rate = median(rates)
            slow.append(Slow(one.rank, measure, rate, rate / found.reference, below))
    return slow


def unclear(
    members: Sequence[Measured], measure: str, found: Spread, tolerance: float, slow: Collection[int]
) -> list[Unclear]:
    """Return why ranks that are not slow are not alike either; nothing if they are."""
    if (sigma := found.sigma) is None:
        return []
    reference = found.reference
    above = reference + max(FACTOR * sigma, tolerance * reference)
    middle = {one.rank: median(one.rates[measure]) for one in members if one.rank not in slow}

    def because(reason: str, ranks: Sequence[int]) -> list[Unclear]:
        if not ranks:
            return []
        share = max((middle[rank] / reference for rank in ranks), key=lambda one: abs(one - 1.0))
        return [Unclear(members[0].kind, measure, reason, tuple(ranks), sigma / reference, share)]

    if sigma > tolerance * reference:
        return because("spread", list(middle))
    faster = [
        one.rank for one in members if 2 * sum(rate > above for rate in one.rates[measure]) > len(one.rates[measure])
    ]
    scattered = [rank for rank, rate in middle.items() if rate < reference - tolerance * reference]
    return because("scatter", scattered) + because("faster", faster)


def odd_bits(members: Sequence[Measured], result: str) -> tuple[list[Wrong], list[Undecided]]:
    """The ranks whose bits change or differ from the majority's; or why nobody can be named.

    Where they change on most ranks, what computes here does not give the same bits twice: no rank is at fault.
    """
    kind = members[0].kind
    steady = {one.rank: one.bits[result][0] for one in members if len(set(one.bits[result])) == 1}
    changing = tuple(one.rank for one in members if one.rank not in steady)
    if len(changing) > 1 and 2 * len(changing) > len(members):
        return [], [Undecided(kind, result, "change", changing)]
    wrong = [Wrong(rank, result, "change") for rank in changing]
    if not steady:
        return wrong, []
    bits, count = Counter(steady.values()).most_common(1)[0]
    if 2 * count <= len(steady):
        return wrong, [Undecided(kind, result, "no majority", tuple(steady))]
    return wrong + [Wrong(rank, result, "differ") for rank, mine in steady.items() if mine != bits], []
