"""Divide the ranks of a scan into units: ranks, nodes, or groups of nodes with partners that change in every round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, split_by_label
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.lu import digest
from mxpeak.layout.cores import short_list
from mxpeak.runtime.nodes import node_name

#: Shuffles per round, of which the one that repeats the fewest pairs of partners is used.
SHUFFLES = 20
#: The bits of a node whose groups had the same results as most groups, or other results.
AGREES, DIFFERS = "agrees", "differs"


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a rank: one rank, or the ranks of a node.

    comm     communicator of the unit's ranks
    ranks    their numbers, as in 0-3
    largest  number of ranks of the largest unit
    """

    comm: Communicator
    ranks: str
    largest: int

    @property
    def leads(self) -> bool:
        """Return whether this rank reports the rates of its unit."""
        return self.comm.rank == 0

    def largest_time(self, seconds: float, xp: Any) -> float:
        """Return the largest of the unit's times. Collective over the unit."""
        return allreduce_scalar(self.comm, seconds, "max", xp)

    def combined(self, bits: str) -> str:
        """Return one digest of the digests of all ranks of the unit. Collective over the unit."""
        if self.comm.size == 1:
            return bits
        every = self.comm.gather_objects(bits)
        return str(self.comm.bcast_object(every and digest(part.encode() for part in every)))


def unit_of(name: str, comm: Communicator) -> Unit:
    """Return this rank's unit: a rank (`rank` or `device`), or a node (`node` or `group`). Collective over comm."""
    if name in ("rank", "device"):
        return Unit(Solo(comm.transport), str(comm.rank), 1)
    group = split_by_label(comm, node_name())
    ranks = group.bcast_object(group.gather_objects(comm.rank))
    return Unit(group, short_list(ranks), int(allreduce_scalar(comm, float(group.size), "max")))


def check_group_sizes(sizes: Sequence[int], nodes: int, rounds: int) -> None:
    """Raise a UsageError if groups of these sizes cannot identify a slow node, or if a node pauses in all rounds.

    In groups of g of M nodes, a node shares its group with a slow node in (g - 1)/(M - 1) of the rounds, which is below
    one half if M >= 2g.
    """
    for size in sizes:
        if nodes < 2 * size:
            smaller = "smaller groups or " if size > 2 else ""
            raise UsageError(
                f"--group {size} needs at least {2 * size} nodes, because partners must change, but "
                f"{nodes} take{'s' * (nodes == 1)} part; use {smaller}--unit node"
            )
        if nodes % size and rounds < 2:
            raise UsageError(
                f"--group {size} leaves {nodes % size} of {nodes} nodes out of each round, so --rounds {rounds} omits "
                "some of them; use --rounds 5"
            )


def schedule(nodes: int, size: int, rounds: int) -> list[list[list[int]]]:
    """Return the groups of nodes in each round. Each node pauses equally often if the groups do not use all nodes.

    The schedule is a pure function of its arguments. It avoids pairs of partners of earlier rounds.
    """
    random, met = Random(size), Counter[tuple[int, int]]()
    paused = nodes % size
    plan = []
    for t in range(rounds):
        pausing = {(t * paused + i) % nodes for i in range(paused)}
        active = [node for node in range(nodes) if node not in pausing]
        candidates = [_shuffled(active, size, random) for _ in range(SHUFFLES)]
        best = min(candidates, key=lambda groups: sum(met[pair] for pair in _pairs(groups)))
        met.update(_pairs(best))
        plan.append(best)
    return plan


def _shuffled(nodes: Sequence[int], size: int, random: Random) -> list[list[int]]:
    """Return a random division of the nodes into groups of this size, each in ascending order."""
    order = random.sample(nodes, len(nodes))
    return [sorted(order[first : first + size]) for first in range(0, len(order), size)]


def _pairs(groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [pair for group in groups for pair in combinations(group, 2)]


def agreement(bits: Sequence[Sequence[str]]) -> list[str]:
    """Return one text per node: AGREES if one of its groups had the results of most groups, otherwise DIFFERS.

    bits[i][t] is the digest of node i's group in round t, or an empty text if the node paused. Without a majority,
    return the digests of each node, so that `decide` finds no majority either.
    """
    counts = Counter(own for of_node in bits for own in of_node if own).most_common(2)
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        return [",".join(sorted(filter(None, set(of_node)))) for of_node in bits]
    return [AGREES if counts[0][0] in of_node else DIFFERS for of_node in bits]
