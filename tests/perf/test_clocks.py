"""Compare broadcasts on clocks with a simulation of single messages, and with those that comm.broadcast sends."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.broadcast import BROADCASTS, PIECE_BYTES, PIECES
from mxpeak.perf.simulation.clocks import ProcessLine, arrivals, stages
from mxpeak.perf.simulation.machines import Network

NETWORK = Network(
    nics=2, nic_rate=8.0, latency_s=0.5, local_rate=32.0, local_latency_s=0.25, host_rate=1.0, lib_passes=2.0,
    ilib_passes=5.0,
)  # fmt: skip
RINGS = ("1ring", "1ringM", "2ring", "2ringM")


def really_sent(name: str, size: int, root: int) -> set[tuple[int, int]]:
    """Return the pairs of sender and receiver in comm.broadcast, relative to the root."""
    sent = set()
    done = SimpleNamespace(test=lambda: True)

    class Comm(SimpleNamespace):
        def isend(self, buffer: Any, to: int, tag: int) -> object:
            sent.add(((self.rank - root) % size, (to - root) % size))
            return done

        def irecv(self, buffer: Any, source: int, tag: int) -> object:
            return done

    for rank in range(size):
        list(BROADCASTS[name](Comm(name="mpi", rank=rank, size=size), np.empty(PIECES * PIECE_BYTES, np.uint8), root))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13])
def test_messages_are_those_that_the_solvers_send(name: str, size: int) -> None:
    chains = [[0, *chain] for stage in stages(name, size) for chain in stage]
    assert {hop for chain in chains for hop in pairwise(chain)} == really_sent(name, size, root=1)


def message_by_message(
    name: str, line: ProcessLine, root: int, ready: float, entry: list[float], port: list[float], size_bytes: float
) -> list[float]:
    """Simulate one line: a message begins when it has arrived, its sender takes part, and the sender's port is free."""
    at = {root: ready}
    start = ready
    for stage in stages(name, line.size):
        departure = start
        for chain in stage:
            order = [root, *((root + r) % line.size for r in chain)]
            for sender, receiver in pairwise(order):
                leaves = sender // line.inside != receiver // line.inside
                latency = NETWORK.latency_s if leaves else NETWORK.local_latency_s
                rate = NETWORK.rate(line.across) if leaves else NETWORK.local_rate
                rate /= len(stage) if sender == root else 1
                begin = max(start if sender == root else at[sender], entry[sender], port[sender] if leaves else 0.0)
                at[receiver] = begin + latency + size_bytes / rate
                if sender == root:
                    departure = max(departure, at[receiver])
        start = departure
    return [at[rank] for rank in range(line.size)]


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize(
    ("size", "inside", "across"), [(2, 1, 1), (3, 1, 4), (6, 2, 2), (8, 4, 1), (5, 5, 1), (7, 1, 3)]
)
def test_a_ring_of_arrays_is_one_message_after_the_other(name: str, size: int, inside: int, across: int) -> None:
    rng = np.random.default_rng(20261122)
    line, lines = ProcessLine(size, inside, across, NETWORK), 4
    for root in range(size):
        ready, size_bytes = rng.uniform(0, 3, lines), rng.uniform(0, 20, lines)
        entry = rng.uniform(0, 5, (lines, size))
        port = np.zeros((lines, size))
        times = arrivals(name, line, root, ready, entry, port, size_bytes)
        for k in range(lines):
            expected = message_by_message(name, line, root, ready[k], list(entry[k]), [0.0] * size, size_bytes[k])
            np.testing.assert_allclose(times[k], expected, rtol=1e-13)


def test_a_port_that_is_busy_delays_what_leaves_the_node_and_only_that() -> None:
    zero = np.zeros(1)
    for inside, delayed in ((1, True), (3, False)):
        line = ProcessLine(3, inside, 1, NETWORK)
        free = arrivals("1ring", line, 0, zero, np.zeros((1, 3)), np.zeros((1, 3)), np.array([8.0]))
        busy = arrivals("1ring", line, 0, zero, np.zeros((1, 3)), np.full((1, 3), 9.0), np.array([8.0]))
        assert (busy[0, 1] == free[0, 1] + 9.0) == delayed
        assert (busy == free).all() != delayed


def test_the_library_begins_when_all_are_there_and_long_takes_pieces() -> None:
    line, size_bytes = ProcessLine(4, 1, 1, NETWORK), np.array([16.0])
    entry = np.array([[0.0, 1.0, 7.0, 2.0]])
    at = arrivals("lib", line, 0, np.array([3.0]), entry, np.zeros((1, 4)), size_bytes)
    assert at[0].tolist() == [7.0 + math.log2(4) * 0.5 + 2 * 16 / 8] * 4
    # three pieces of 4 leave the root in turn, then three rolls, all at 8 bytes per second
    at = arrivals("long", line, 0, np.array([3.0]), np.zeros((1, 4)), np.zeros((1, 4)), size_bytes)
    assert at[0].tolist() == [3.0, *[3.0 + 2 * 3 * (0.5 + 4 / 8)] * 3]
    # longM: first all of rank 1
    at = arrivals("longM", line, 0, np.array([3.0]), np.zeros((1, 4)), np.zeros((1, 4)), size_bytes)
    assert at[0, 1] == 3.0 + 0.5 + 16 / 8
    assert at[0, 2] > at[0, 1]


@pytest.mark.parametrize("name", [*RINGS, "long", "longM", "lib", "ilib"])
def test_one_rank_has_nothing_to_wait_for(name: str) -> None:
    at = arrivals(
        name, ProcessLine(1, 1, 1, NETWORK), 0, np.array([2.0]), np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1)
    )
    assert at.tolist() == [[2.0]]
