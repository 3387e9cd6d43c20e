"""Simulate broadcasts: compute when a root's message arrives on each rank, for all rows of a process grid together.

A ring is a chain of hops. Hop i begins when its sender has the message (a_i) and is ready to send (f_i). A sender is
ready when it has entered the broadcast and its port is free. With the time c_i per hop and the start t,

    a_0 = t,    a_{i+1} = max(a_i, f_i) + c_i

With C_i = c_0 + ... + c_{i-1} this is a running maximum, a_i = C_i + max(t, f_0 - C_0, ..., f_{i-1} - C_{i-1}).
Therefore, all hops of all rows need only four array operations. Times are seconds since the start, in fp64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.perf.simulation.machines import Network

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

#: Chains of ranks, relative to the root, in stages. The root sends to the heads of all chains of a stage at the same
#: time. The next stage begins when the first messages of all chains have left the root. The chains are those of
#: comm.broadcast.
Stages = list[list[list[int]]]


def stages(name: str, size: int) -> Stages:
    """Return the chains through which HPL's 1ring, 1ringM, 2ring or 2ringM forwards a panel among `size` ranks.

    In the "M" variants, the root first sends to rank 1. Raise a UsageError for other names.
    """
    last = list(range(1, size))
    if name == "1ring":
        all_stages = [[last]]
    elif name == "1ringM":
        all_stages = [[last[:1]], [last[1:]]]
    elif name == "2ring":
        middle = (size + 1) // 2
        all_stages = [[list(range(1, middle)), list(range(middle, size))]]
    elif name == "2ringM":
        middle = 2 + (size - 1) // 2 if size > 2 else size
        all_stages = [[last[:1]], [list(range(2, middle)), list(range(middle, size))]]
    else:
        raise UsageError(
            f"--bcast {name} cannot be simulated; use 1ring, 1ringM, 2ring, 2ringM, long, longM, lib or ilib"
        )
    return [chains for stage in all_stages if (chains := [chain for chain in stage if chain])]


@dataclass(frozen=True)
class ProcessLine:
    """A process row or a process column, whose ranks take part in a broadcast.

    size      number of ranks in a line
    inside    number of ranks of a line on one node
    across    number of lines per node

    All lines of a node send at about the same time and share the node's ports (eq. 5 of the OLCF paper).
    """

    size: int
    inside: int
    across: int
    network: Network

    @property
    def leaves(self) -> bool:
        """Return whether the line has ranks on more than one node."""
        return self.inside < self.size

    @property
    def slowest(self) -> tuple[float, float]:
        """Return the latency in seconds and the seconds per byte of the slowest hop of the line."""
        if self.leaves:
            return self.network.latency_s, 1.0 / self.network.rate(self.across)
        return self.network.local_latency_s, 1.0 / self.network.local_rate


def arrivals(
    name: str, line: ProcessLine, root: int, ready: Array, entry: Array, port: Array, size_bytes: Array
) -> Array:
    """Return the time at which each rank of each line has received the root's message, as an array [lines, ranks].

    ready   time at which the root of each line has the message
    entry   time at which each rank enters the broadcast
    port    time from which each rank's port is free; updated in place
    """
    at: Array = np.empty_like(entry)
    at[:, root] = ready
    if line.size == 1:
        return at
    if name in ("lib", "ilib"):
        at[:] = _library(name, line, ready, entry, size_bytes)[:, None]
    elif name in ("long", "longM"):
        _spread_and_roll(name == "longM", line, root, at, entry, port, size_bytes)
    else:
        _rings(name, line, root, at, entry, port, size_bytes)
    return at


def _rings(name: str, line: ProcessLine, root: int, at: Array, entry: Array, port: Array, size_bytes: Array) -> None:
    start = at[:, root]
    for stage in _routes(name, line, root):
        sent, begun, busy = start, port[:, root].copy(), port[:, root].copy()
        for order, latency, per_byte, leaving in stage:
            port[:, root] = begun  # the root sends to the heads of a stage at the same time
            sent = np.maximum(sent, _chain(order, latency, per_byte, leaving, start, at, entry, port, size_bytes))
            busy = np.maximum(busy, port[:, root])
        start, port[:, root] = sent, busy


@cache
def _routes(name: str, line: ProcessLine, root: int) -> list[list[tuple[Any, Any, Any, Any]]]:
    """Return the hops of each chain in each stage of a broadcast.

    The arrays contain the ranks, the latency and the seconds per byte of the hops, and whether a hop leaves the node.
    """
    return [
        [_route(line, [root, *((root + r) % line.size for r in chain)], len(stage)) for chain in stage]
        for stage in stages(name, line.size)
    ]


def _route(line: ProcessLine, order: list[int], together: int) -> tuple[Any, Any, Any, Any]:
    ranks = np.array(order)
    node = ranks // line.inside
    leaving = node[1:] != node[:-1]
    net = line.network
    latency = np.where(leaving, net.latency_s, net.local_latency_s)
    per_byte = np.where(leaving, 1.0 / net.rate(line.across), 1.0 / net.local_rate)
    per_byte[0] *= together  # the heads of a stage share the root's port
    return ranks, latency, per_byte, leaving


def _chain(
    ranks: Any,
    latency: Array,
    per_byte: Array,
    leaving: Any,
    start: Array,
    at: Array,
    entry: Array,
    port: Array,
    size_bytes: Array,
) -> Array:
    """Simulate one chain in all lines, update `at` and `port`, and return when the first message has left the root."""
    senders, receivers = ranks[:-1], ranks[1:]
    free = np.where(leaving, np.maximum(entry[:, senders], port[:, senders]), entry[:, senders])
    free[:, 0] = np.maximum(start, free[:, 0])
    cost = latency + size_bytes[:, None] * per_byte
    C = np.cumsum(cost, axis=1)
    arrived = np.maximum.accumulate(free - (C - cost), axis=1) + C
    at[:, receivers] = arrived
    port[:, senders] = np.where(leaving, arrived, port[:, senders])
    first: Array = arrived[:, 0]
    return first


def _spread_and_roll(
    modified: bool, line: ProcessLine, root: int, at: Array, entry: Array, port: Array, size_bytes: Array
) -> None:
    """Simulate HPL's long broadcast, which scatters S pieces and then exchanges them in S - 1 rolls.

    t = max(entries, t_root + (S-1)(l + m/S b)) + (S-1)(l + m/S b), for a message of m bytes and hops of latency l and
    b seconds per byte. `at` and `port` are updated.
    """
    start = at[:, root].copy()
    others, S = list(range(line.size)), line.size
    if modified:
        second = (root + 1) % line.size
        _, latency, per_byte, _ = _route(line, [root, second], 1)
        start = np.maximum(start, port[:, root]) + latency[0] + size_bytes * per_byte[0]
        at[:, second] = start
        others.remove(second)
        S -= 1
    if S == 1:
        return
    latency_s, per_byte_s = line.slowest
    rounds = (S - 1) * (latency_s + size_bytes / S * per_byte_s)
    done = np.maximum(np.max(entry[:, others], axis=1), np.maximum(start, port[:, root]) + rounds) + rounds
    receivers = [rank for rank in others if rank != root]
    at[:, receivers] = done[:, None]
    if line.leaves:
        port[:, others] = done[:, None]


def _library(name: str, line: ProcessLine, ready: Array, entry: Array, size_bytes: Array) -> Array:
    """Return the time at which the library's broadcast ends on all ranks of each line.

    The broadcast begins when all ranks have entered it.
    """
    passes = line.network.lib_passes if name == "lib" else line.network.ilib_passes
    latency_s, per_byte = line.slowest
    begun = np.maximum(ready, entry.max(axis=1))
    inside = 1.0 / line.network.local_rate if line.leaves and line.inside > 1 else 0.0
    done: Array = begun + math.ceil(math.log2(line.size)) * latency_s + size_bytes * (passes * per_byte + inside)
    return done
