"""Test scans of links: the pairs of ranks, the measurements, the checks, and the links and hosts that are named."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.tournament import round_count
from mxpeak.perf.adapters import adapter_changes, adapter_counters
from mxpeak.verbs.scan import links as scan_links
from mxpeak.verbs.scan.links import (
    BANDWIDTH,
    BETWEEN,
    LATENCY,
    WITHIN,
    Link,
    LinkRates,
    Meeting,
    decide_links,
    link_sections,
    links_of,
    measure_links,
    meetings,
    positions,
)

HOSTS = ["a", "a", "b", "b", "c", "c", "d", "d"]


@pytest.mark.parametrize("hosts", [HOSTS, ["a", "b", "a", "b", "c"], ["a"] * 5, list("abcde"), ["a", "b", "b", "b"]])
def test_partners_meet_each_other_once(hosts: list[str]) -> None:
    places = positions(hosts)
    partners = [list(meetings(places, rank)) for rank in range(len(hosts))]
    assert len({len(rounds) for rounds in partners}) == 1
    for rank, rounds in enumerate(partners):
        others = [other for other in rounds if other is not None]
        assert len(others) == len(set(others))
        assert all(partners[other][k] == rank for k, other in enumerate(rounds) if other is not None)
        inside = {other for other, host in enumerate(hosts) if host == hosts[rank]} - {rank}
        rail = {other for other, place in enumerate(places) if place.local == places[rank].local} - {rank}
        assert set(others) == inside | rail
    locals_, nodes = (1 + max(getattr(place, name) for place in places) for name in ("local", "node"))
    assert len(partners[0]) == round_count(locals_) + round_count(nodes)


def measured(
    hosts: list[str], rounds: int, spoil: Callable[[Communicator], Communicator] = lambda comm: comm
) -> list[dict[int, LinkRates]]:
    """Measure the links of thread ranks with small messages; `spoil` changes the communicator of a rank."""
    places = positions(hosts)

    def body(comm: Communicator) -> Any:
        partners = list(meetings(places, comm.rank)) * rounds
        return measure_links(Meeting(HostKernels(1), spoil(comm), on_gpu=False), partners, comm, lambda done: None)

    return run_ranks(len(hosts), body)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_links, "SIDE", 96)


class Faulty:
    """A communicator whose messages of data to or from one rank are late, or change on their way."""

    def __init__(
        self, comm: Communicator, other: int, *, late_s: float = 0.0, flips: bool = False, from_rank: int = -1
    ):
        self._comm, self._other, self._late_s, self._flips, self._from = comm, other, late_s, flips, from_rank
        self.rank, self.transport = comm.rank, comm.transport

    def isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:
        if tag == scan_links.DATA and dest == self._other:
            time.sleep(self._late_s)
            if self._flips:
                buffer = buffer.copy()
                buffer.view("i8")[-1, -1] ^= 1
            if self._from >= 0:
                buffer = buffer.copy()
                buffer[0, 0] = 1.0 + self._from
        return self._comm.isend(buffer, dest, tag)

    def irecv(self, buffer: Any, source: int, tag: int = 0) -> Any:
        return self._comm.irecv(buffer, source, tag)


def test_messages_arrive_unchanged() -> None:
    links = links_of(measured(HOSTS[:4], 2), positions(HOSTS[:4]))
    assert [(link.source, link.dest) for link in links] == [
        (0, 1), (0, 2), (1, 0), (1, 3), (2, 0), (2, 3), (3, 1), (3, 2)
    ]  # fmt: skip
    assert {(link.kind, HOSTS[link.source] == HOSTS[link.dest]) for link in links} == {(WITHIN, True), (BETWEEN, False)}
    assert all(link.wrong_rounds == 0 and link.bandwidth > 0 and link.latency > 0 for link in links)


@pytest.mark.parametrize("fault", [{"flips": True}, {"from_rank": 0}])
def test_a_changed_bit_and_a_wrong_sender_are_found(fault: dict[str, Any]) -> None:
    hosts = ["a", "b", "c"]
    rates = measured(hosts, 3, lambda comm: Faulty(comm, 2, **fault) if comm.rank == 1 else comm)  # type: ignore[arg-type,return-value]
    verdict = decide_links(links_of(rates, positions(hosts)), positions(hosts), 0.999, measures=())
    assert [(link.source, link.dest, link.wrong_rounds) for link in verdict.wrong] == [(1, 2, 3)]


def test_a_late_link_is_slow() -> None:
    """100 ms against 72 KiB between threads, of which the fastest of four takes less than 10 ms on a busy machine."""
    hosts = list("abcd")
    rates = measured(hosts, 3, lambda comm: Faulty(comm, 3, late_s=0.1) if comm.rank == 2 else comm)  # type: ignore[return-value]
    verdict = decide_links(links_of(rates, positions(hosts)), positions(hosts), 0.9, measures=(BANDWIDTH,))
    assert (2, 3) in {(link.source, link.dest) for link in verdict.slow}
    assert verdict.hosts == []


def invented(hosts: list[str], slow: dict[tuple[int, int], float]) -> list[Link]:
    """Return the links of all ranks: 25 GB/s between nodes and 200 GB/s within, slower by the given factors."""
    places = positions(hosts)
    links = []
    for source, place in enumerate(places):
        for dest, other in enumerate(places):
            inside = place.node == other.node
            if source == dest or not (inside or place.local == other.local):
                continue
            share = slow.get((source, dest), 1.0) * (1 + 1e-3 * (dest % 3))
            rate, latency = (200e9, 2e-6) if inside else (25e9, 5e-6)
            links.append(Link(source, dest, WITHIN if inside else BETWEEN, share * rate, latency / share, 0))
    return links


def test_equal_links_are_not_slow() -> None:
    verdict = decide_links(invented(HOSTS, {}), positions(HOSTS), 0.3)
    assert (verdict.slow, verdict.wrong, verdict.hosts) == ([], [], [])
    assert set(verdict.spreads) == {WITHIN, BETWEEN}


def test_a_slow_node_is_named() -> None:
    """All links of rail 0 of host c are slow, which are half of its links; both rails are more than half."""
    rail = {(source, dest): 0.4 for source in (0, 2, 4, 6) for dest in (0, 2, 4, 6) if 4 in (source, dest)}
    one_rail = decide_links(invented(HOSTS, rail), positions(HOSTS), 0.3)
    assert {link.measure for link in one_rail.slow} == {BANDWIDTH, LATENCY}
    assert one_rail.hosts == []
    both = {**rail, **{(source + 1, dest + 1): 0.4 for source, dest in rail}}
    assert decide_links(invented(HOSTS, both), positions(HOSTS), 0.3).hosts == ["c"]


@pytest.mark.parametrize("direction", ["sends", "receives"])
def test_a_node_that_is_slow_in_one_direction_is_named(direction: str) -> None:
    """The other hosts have two slow links of six in the other direction."""
    ends = {(source, dest) for source in (4, 5) for dest in range(8) if dest % 2 == source % 2 and dest != source}
    slow = dict.fromkeys(ends if direction == "sends" else {(dest, source) for source, dest in ends}, 0.4)
    verdict = decide_links(invented(HOSTS, slow), positions(HOSTS), 0.3)
    assert {(link.source, link.dest) for link in verdict.slow} == set(slow)
    assert verdict.hosts == ["c"]


def test_a_slow_link_within_a_node_names_the_node() -> None:
    verdict = decide_links(invented(HOSTS, {(2, 3): 0.5}), positions(HOSTS), 0.3)
    assert {(link.source, link.dest) for link in verdict.slow} == {(2, 3)}
    assert verdict.hosts == ["b"]


def test_of_two_nodes_none_is_excluded_for_a_slow_link() -> None:
    hosts = ["a", "b"]
    verdict = decide_links(invented(hosts, {(0, 1): 0.5}), positions(hosts), 0.3)
    assert [(link.source, link.dest) for link in verdict.slow] == [(0, 1), (0, 1)]
    assert verdict.hosts == []


def test_an_absolute_limit() -> None:
    links = invented(HOSTS, {})
    assert decide_links(links, positions(HOSTS), 0.3, 20e9).slow == []
    slow = decide_links(links, positions(HOSTS), 0.3, 30e9).slow
    assert {(link.source, link.dest) for link in slow} == {(k.source, k.dest) for k in links if k.kind == BETWEEN}


def test_many_links_are_not_listed() -> None:
    links = invented(HOSTS, {(0, 2): 0.1})
    verdict = decide_links(links, positions(HOSTS), 0.3)
    section = link_sections(links, verdict, max_links=3)
    assert [(link["source"], link["dest"]) for link in section["links"]] == [(0, 2)]
    assert section["link_count"] == len(links)


def test_adapter_counters(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An InfiniBand port, a Slingshot adapter, a counter without a value, and one that only root can read."""
    read_text = Path.read_text

    def read_as_user(file: Path, *args: Any, **options: Any) -> str:
        if file.name == "VL15_dropped":
            raise PermissionError(13, "Permission denied", str(file))
        return read_text(file, *args, **options)

    monkeypatch.setattr(Path, "read_text", read_as_user)

    def write(path: str, text: str) -> None:
        file = tmp_path / "sys/class" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    port, cxi = "infiniband/mlx5_0/ports/1", "cxi/cxi0/device/telemetry"
    for name, text in {
        "port_xmit_data": "100",
        "port_rcv_data": "7",
        "symbol_error": "3",
        "port_xmit_wait": "1",
    }.items():
        write(f"{port}/counters/{name}", f"{text}\n")
    write(f"{port}/hw_counters/out_of_sequence", "5\n")
    write(f"{port}/counters/link_downed", "N/A (no PMA)\n")
    write(f"{port}/counters/VL15_dropped", "0\n")
    write(f"{cxi}/hni_sts_tx_ok_octets", "1000@1732870000.5\n")
    write(f"{cxi}/hni_pcs_uncorrected_cw", "0@1732870000.5\n")
    before = adapter_counters(tmp_path)
    write(f"{port}/counters/port_xmit_data", "350\n")
    write(f"{port}/counters/symbol_error", "4\n")
    write(f"{port}/hw_counters/out_of_sequence", "9\n")
    write(f"{cxi}/hni_sts_tx_ok_octets", "4000@1732870009.5\n")
    write(f"{cxi}/hni_pcs_uncorrected_cw", "2@1732870009.5\n")
    assert adapter_changes(before, adapter_counters(tmp_path)) == [
        {
            "port": "cxi0",
            "sent_bytes": 3000,
            "received_bytes": None,
            "errors": {"hni_pcs_uncorrected_cw": 2},
            "waits": {},
            "unreadable": 0,
        },
        {
            "port": "mlx5_0/1",
            "sent_bytes": 1000,
            "received_bytes": 0,
            "errors": {"out_of_sequence": 4, "symbol_error": 1},
            "waits": {},
            "unreadable": 1,
        },
    ]
    assert adapter_counters(tmp_path / "nowhere") == {}
