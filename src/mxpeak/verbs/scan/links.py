"""Measure the links of all pairs of ranks within a node, and of each pair of nodes by rail.

Ranks meet in a tournament: within the nodes, each pair of ranks once; then each pair of nodes once, where the ranks
with the same number on their nodes exchange messages (a rail). In a meeting, two ranks measure

    latency     half the time of a message of 8 bytes and its answer: the shortest of several series
    bandwidth   size of a large message over the time until its acknowledgement arrives, in each direction: the highest

The messages use the memory and the library of a run. Each large message contains a pattern, and the receiver compares
it bitwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.backend import Matrix
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.tournament import opponent, round_count
from mxpeak.verbs.scan.decide import ENOUGH, FACTOR, SIGMA, Spread

#: Order of the fp64 matrix that a large message contains: 8 MiB, and 72 MiB between GPUs.
SIDE, GPU_SIDE = 1024, 3072
#: Messages per series, series, and large messages per direction in a meeting.
PINGS, SERIES, MESSAGES = 20, 5, 4
TAG = 7602  # a multiple of FAMILY
READY, DATA, ACKNOWLEDGED = TAG, TAG + 1, TAG + 2
SEED = 700
#: The kinds of links, and the measures of a link.
WITHIN, BETWEEN = "within a node", "between nodes"
BANDWIDTH, LATENCY = "bandwidth", "latency"
#: Minimum number of nodes for naming a slow node, and the share of its links in one direction that must be slow.
FEWEST_NODES, MAJORITY = 3, 0.5


@dataclass(frozen=True, slots=True)
class Position:
    """The host of a rank, the number of its node, and the number of the rank on its node."""

    host: str
    node: int
    local: int


@dataclass(slots=True)
class LinkRates:
    """The measurements of the link from this rank to another one, by round.

    intact    whether the messages that this rank received from the other rank were correct
    """

    bandwidth: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    intact: list[bool] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Link:
    """The medians of a link from rank `source` to rank `dest` over the rounds.

    bandwidth, latency   in byte/s and seconds
    wrong_rounds         rounds in which `dest` received a wrong message
    """

    source: int
    dest: int
    kind: str
    bandwidth: float
    latency: float
    wrong_rounds: int


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link whose rate is too low. `share` is its rate over the reference; for a latency, the inverse ratio."""

    source: int
    dest: int
    measure: str
    value: float
    share: float


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """The spread of each measure by kind of link, the slow and wrong links, and the hosts that explain them.

    hosts    hosts with a slow or wrong link within the host, or with more than half of their links to other hosts or
             from other hosts
    """

    spreads: dict[str, dict[str, Spread]]
    slow: list[SlowLink]
    wrong: list[Link]
    hosts: list[str]


def positions(hosts: Sequence[str]) -> list[Position]:
    """Return the positions of all ranks from the names of their hosts."""
    nodes: dict[str, int] = {}
    ranks: dict[str, int] = {}
    result = []
    for host in hosts:
        node = nodes.setdefault(host, len(nodes))
        result.append(Position(host, node, ranks.get(host, 0)))
        ranks[host] = ranks.get(host, 0) + 1
    return result


def meetings(places: Sequence[Position], rank: int) -> Iterator[int | None]:
    """Yield the partner of a rank in each round of the tournament, or None if the rank pauses."""
    own, at = places[rank], {(place.node, place.local): other for other, place in enumerate(places)}
    locals_, nodes = (1 + max(getattr(place, name) for place in places) for name in ("local", "node"))
    for k in range(round_count(locals_)):
        other = opponent(locals_, k, own.local)
        yield None if other is None else at.get((own.node, other))
    for k in range(round_count(nodes)):
        other = opponent(nodes, k, own.node)
        yield None if other is None else at.get((other, own.local))


def pattern(kernels: Kernels, comm: Communicator, side: int) -> Matrix:
    """Return a contiguous fp64 matrix of this order in the memory of the kernels; it is equal on all ranks."""
    alone = make_grid(ProcessGrid(1, 1), Solo(comm.transport))
    assert alone is not None
    A = dist_matrix(alone, side, side, side, kernels, "fp64")
    GeneratedSystem(alone, side, side, generator("gaussian", side, seed=SEED), kernels).store(A)
    contiguous = kernels.buffer(side * side).reshape((side, side))
    kernels.copy(A.local, contiguous)
    return contiguous


class Meeting:
    """The buffers of a rank for its meetings.

    `pattern` is equal on all ranks, except for its first entry, which names the sender.
    """

    def __init__(self, kernels: Kernels, comm: Communicator, *, on_gpu: bool):
        side = GPU_SIDE if on_gpu else SIDE
        self._kernels, self._comm = kernels, comm
        self._pattern = pattern(kernels, comm, side)
        self._received = kernels.buffer(side * side).reshape((side, side))
        self._pattern[:1, :1] = 0.0
        self._digest = kernels.digest(self._pattern)
        self._pattern[:1, :1] = 1.0 + comm.rank
        self._token, self._answer = kernels.buffer(1), kernels.buffer(1)
        self._token[:] = 1.0
        self.size_bytes = 8 * side * side

    def measure(self, partner: int, rates: LinkRates) -> None:
        """Measure the link to a partner, which measures at the same time, and add the values to `rates`."""
        first = self._comm.rank < partner
        rates.latency.append(min(self._series(partner, first) for _ in range(SERIES)))
        for sends in (first, not first):
            if sends:
                rates.bandwidth.append(max(self._send(partner) for _ in range(MESSAGES)))
            else:
                for _ in range(MESSAGES):
                    self._receive(partner)
                rates.intact.append(self._is_intact(partner))

    def _series(self, partner: int, first: bool) -> float:
        """Exchange short messages, and return half the mean time of a message and its answer."""
        operations = (self._comm.isend, self._comm.irecv)
        buffers = (self._token, self._answer)
        order = (0, 1) if first else (1, 0)
        self._kernels.wait()
        begin = perf_counter()
        for _ in range(PINGS):
            for k in order:
                operations[k](buffers[k], partner, READY).wait()
        return (perf_counter() - begin) / (2 * PINGS)

    def _send(self, partner: int) -> float:
        """Send the pattern when the partner is ready, and return the size over the time until its acknowledgement."""
        self._comm.irecv(self._answer, partner, READY).wait()
        acknowledged = self._comm.irecv(self._answer, partner, ACKNOWLEDGED)
        begin = perf_counter()
        self._comm.isend(self._pattern, partner, DATA).wait()
        acknowledged.wait()
        return self.size_bytes / (perf_counter() - begin)

    def _receive(self, partner: int) -> None:
        """Clear the receive buffer, signal the partner to send, and acknowledge its pattern."""
        self._received[:] = 0.0
        self._kernels.wait()
        arriving = self._comm.irecv(self._received, partner, DATA)
        self._comm.isend(self._token, partner, READY).wait()
        arriving.wait()
        self._comm.isend(self._token, partner, ACKNOWLEDGED).wait()

    def _is_intact(self, partner: int) -> bool:
        """Return whether the received pattern is that of the partner, bit by bit."""
        (sender,) = self._kernels.fetch(self._received[0, :1])()
        self._received[:1, :1] = 0.0
        return sender == 1.0 + partner and self._kernels.digest(self._received) == self._digest


def measure_links(
    meeting: Meeting, partners: Sequence[int | None], comm: Communicator, step: Callable[[int], None]
) -> dict[int, LinkRates]:
    """Return the measurements of this rank's links by partner, from one meeting per tournament round. Collective.

    `step` is called with the number of finished tournament rounds.
    """
    rates: dict[int, LinkRates] = {}
    for done, partner in enumerate(partners, 1):
        if partner is not None:
            meeting.measure(partner, rates.setdefault(partner, LinkRates()))
        comm.barrier()  # otherwise pairs of different rounds would compete for the same network
        step(done)
    return rates


def links_of(measured: Sequence[dict[int, LinkRates]], places: Sequence[Position]) -> list[Link]:
    """Return all links from the measurements of all ranks."""
    links = []
    for source, partners in enumerate(measured):
        for dest, rates in sorted(partners.items()):
            kind = WITHIN if places[source].node == places[dest].node else BETWEEN
            wrong = measured[dest][source].intact.count(False)
            links.append(Link(source, dest, kind, median(rates.bandwidth), median(rates.latency), wrong))
    return links


def link_spread(rates: Mapping[Link, float], places: Sequence[Position], tolerance: float) -> Spread:
    """Return the spread of a measure over the links of a kind, with the lowest rate that is not slow.

    With the median rate m_h of the links of host h,

        m = median of all m_h                      a slow host slows half of the links between four hosts, but one m_h
        s = 1.4826 median of ln(r/m), r >= m       rates spread by factors, and slow links would increase s
        slow: r < m min(exp(-3 s), 1 - tolerance)

    With fewer than four links, the best rate replaces m, and s = 0.
    """
    values = list(rates.values())
    best, middle, worst = max(values), median(values), min(values)
    if len(values) < ENOUGH:
        return Spread(best, middle, worst, "best", 0.0, best * (1.0 - tolerance))
    of_hosts: dict[str, list[float]] = {}
    for link, rate in rates.items():
        for host in {places[link.source].host, places[link.dest].host}:
            of_hosts.setdefault(host, []).append(rate)
    m = median(map(median, of_hosts.values()))
    s = SIGMA * median(math.log(rate / m) for rate in values if rate >= m)
    return Spread(best, m, worst, "median", s * m, m * min(math.exp(-FACTOR * s), 1.0 - tolerance))


def decide_links(
    links: Sequence[Link],
    places: Sequence[Position],
    tolerance: float,
    least_bandwidth: float | None = None,
    measures: Collection[str] = (BANDWIDTH, LATENCY),
) -> LinkVerdict:
    """Compare the links of each kind with each other, and name slow and wrong links and the hosts that explain them.

    A link is slow if its bandwidth or the inverse of its latency is below the limit of `link_spread`, or if its
    bandwidth is below `least_bandwidth`. Only the given measures are compared.
    """
    spreads: dict[str, dict[str, Spread]] = {}
    slow: list[SlowLink] = []
    for kind in dict.fromkeys(link.kind for link in links):
        members = [link for link in links if link.kind == kind]
        for measure in (BANDWIDTH, LATENCY):
            rates = {link: link.bandwidth if measure == BANDWIDTH else 1.0 / link.latency for link in members}
            of_all = link_spread(rates, places, tolerance)
            spreads.setdefault(kind, {})[measure] = of_all
            least = of_all.least or 0.0
            if measure == BANDWIDTH:
                least = max(least, least_bandwidth or 0.0)
            slow += [
                SlowLink(link.source, link.dest, measure, getattr(link, measure), rate / of_all.reference)
                for link, rate in rates.items()
                if rate < least and measure in measures
            ]
    wrong = [link for link in links if link.wrong_rounds]
    return LinkVerdict(spreads, slow, wrong, _hosts(links, slow, wrong, places))


def _defective(slow: Sequence[SlowLink], wrong: Sequence[Link]) -> set[tuple[int, int]]:
    """Return the source and the destination of each slow or wrong link."""
    return {(link.source, link.dest) for link in slow} | {(link.source, link.dest) for link in wrong}


def _hosts(
    links: Sequence[Link], slow: Sequence[SlowLink], wrong: Sequence[Link], places: Sequence[Position]
) -> list[str]:
    """Return the hosts that explain the slow and wrong links: see `LinkVerdict`."""
    defective = _defective(slow, wrong)
    named: set[str] = set()
    counts: dict[tuple[str, str], list[int]] = {}  # by host and direction: a slow sender slows one direction
    for link in links:
        bad = (link.source, link.dest) in defective
        source, dest = places[link.source].host, places[link.dest].host
        if source == dest:
            named |= {source} if bad else set()
            continue
        for end in ((source, "sends"), (dest, "receives")):
            defects, total = counts.setdefault(end, [0, 0])
            counts[end] = [defects + bad, total + 1]
    if len({host for host, _ in counts}) >= FEWEST_NODES:
        named |= {host for (host, _), (defects, total) in counts.items() if defects > MAJORITY * total}
    return sorted(named)


def link_sections(links: Sequence[Link], verdict: LinkVerdict, *, max_links: int) -> dict[str, Any]:
    """Return the JSON sections of the links. Of more than `max_links` links, list only slow and wrong ones."""
    defective = _defective(verdict.slow, verdict.wrong)
    listed = links if len(links) <= max_links else [link for link in links if (link.source, link.dest) in defective]
    return {
        "links": [asdict(link) for link in listed],
        "link_count": len(links),
        "link_spreads": {
            kind: {measure: asdict(values) for measure, values in spreads.items()}
            for kind, spreads in verdict.spreads.items()
        },
        "slow_links": [asdict(link) for link in verdict.slow],
        "wrong_links": [asdict(link) for link in verdict.wrong],
    }
