"""Play a log with the rates of a machine, to find the time of each operation.

The log gives the order, and a roofline with the numbers of `perf/machines.toml` gives the times. The model has these
simplifications. Kernels of two streams run as if each had the whole device. The host's time is that of its launches and
of FACT. A rank sends its messages one after the other, each as a whole, and a send does not wait for its receive. A
host that polled and found an event complete continues in the model; then the work that uses the memory waits for the
event.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mxpeak.perf.simulation.clocks import ProcessLine
from mxpeak.perf.simulation.hpl import fact_cores, fact_s
from mxpeak.perf.simulation.machines import Machine
from tests.support.queues.log import HOST, Log, Mark, Op, Record, Step, Wait
from tests.support.queues.sizes import TRAVELS, Same, Sizes

#: Kinds of work by their names in rocHPL's figure 7.
LANES = {"send": "MPI", "receive": "MPI", "collective": "MPI", "up": "transfer", "down": "transfer", "fact": "FACT"}


@dataclass(frozen=True)
class Bar:
    """An operation on the timeline of a rank."""

    op: Op
    lane: str
    step: int
    begin: float
    end: float


@dataclass
class Played:
    """A rank's bars, and the times at which its device completes each step."""

    bars: list[Bar] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Model:
    """The durations of single operations.

    node      the part p×q of the process grid that is on one node
    sharing   whether FACT uses the cores of the node's waiting ranks (rocHPL III-B)
    """

    machine: Machine
    sizes: Sizes = field(default_factory=Same)
    node: tuple[int, int] = (1, 1)
    sharing: bool = True

    def seconds(self, op: Op) -> float:
        """Return the time of an operation's flops or of its bytes."""
        network = self.machine.network
        if op.kind in ("host", "meet"):
            return 0.0
        if op.kind == "fact":
            return self.fact_s(op)
        moved = self.sizes.bytes(op)
        if op.kind in ("up", "down"):
            return moved / network.host_rate
        if op.kind in (*TRAVELS, "collective"):
            return network.local_latency_s + moved / network.local_rate
        return max(self.compute_s(op), moved / (self.machine.memory_rate * self.machine.memory_share))

    def compute_s(self, op: Op) -> float:
        """Return the time of a kernel's flops at the machine's rate; other kernels are limited by their bytes."""
        if op.kind not in ("gemm", "trsm", "factor") or (op.kind == "gemm" and op.sizes[1] == 1):
            return 0.0
        m, jb, k = self.sizes.of(op)
        rate = self.machine.curve(op.kind, op.precision)
        if op.kind == "gemm":
            edge = self.machine.edge
            return 2.0 * (m + edge) * (jb + edge) * k / rate(k)
        return (m * jb * k if op.kind == "trsm" else m * k**2 - k**3 / 3.0) / rate(jb)

    def fact_s(self, op: Op) -> float:
        """Return the time of FACT on the host, with the other ranks of the process column."""
        M, nb, _ = self.sizes.of(op)
        p, q = self.node
        P = op.message[-1]
        line = ProcessLine(P, min(p, P), q, self.machine.network)
        return fact_s(self.machine, line, M, round(nb), fact_cores(self.machine, self.node, self.sharing))


def play(logs: Sequence[Log], model: Model) -> list[Played]:
    """Play the logs of all ranks together."""
    met: dict[Any, dict[Any, float]] = {}
    ranks = [_Rank(log, model, met) for log in logs]
    while any([rank.go() for rank in ranks]):
        pass
    stuck = [rank.next for rank in ranks if rank.next is not None]
    if stuck:
        raise RuntimeError(f"the play stands still, for a message that nobody sends, before {stuck[0]}")
    return [rank.played for rank in ranks]


@dataclass(eq=False)
class _Message:
    """A message in flight, with its start time on this rank."""

    op: Op
    begin: float
    step: int
    end: float | None = None


@dataclass
class _Queue:
    """The work of an actor: its end time, and the messages whose other half is not yet known."""

    end: float = 0.0
    messages: list[_Message] = field(default_factory=list)
    memories: set[int] = field(default_factory=set)


class _Rank:
    """The state of one rank while its log is played.

    now     the host's clock; fact: FACT and its start time
    found   by memory: the time of the event that the host polled; posted: the same for the message that it starts
    port    the times at which the rank's outgoing link is busy: polls start and log messages, which leave when it is
            free
    """

    def __init__(self, log: Log, model: Model, met: dict[Any, dict[Any, float]]):
        self.number, self.model, self.met = log.rank, model, met
        self.records: Iterator[Record] = iter(log.records)
        self.next: Record | None = next(self.records, None)
        self.now = self.posted = 0.0
        self.port: list[tuple[float, float]] = []
        self.fact: tuple[Op | None, float] = (None, 0.0)
        self.queues: dict[str, _Queue] = {}
        self.events: dict[int, tuple[float, list[_Message], str]] = {}
        self.seen: set[int] = set()
        self.ready_at: dict[int, float] = {}
        self.step, self.played = 0, Played()

    def go(self) -> bool:
        """Play as many records as the other ranks' messages allow; return whether any record was played."""
        went = False
        while self.next is not None and self.plays(self.next):
            self.next, went = next(self.records, None), True
        return went

    def plays(self, record: Record) -> bool:
        """Play one record; return False if it must wait for other ranks."""
        if not isinstance(record, Op) or record.kind not in TRAVELS:
            self.posted = 0.0
        if isinstance(record, Op):
            return self.operation(record)
        if isinstance(record, Mark):
            queue = self.queue(record.actor)
            self.events[record.event] = (queue.end, list(queue.messages), record.actor)
            if record.actor == HOST:
                self.events[record.event] = (self.now, [], HOST)
        elif isinstance(record, Wait):
            return self.waits(record)
        elif isinstance(record, Step):
            self.step = record.index
            self.played.steps.append(self.queue("main 0").end)
        return True

    def queue(self, actor: str) -> _Queue:
        return self.queues.setdefault(actor, _Queue())

    # --- operations

    def operation(self, op: Op) -> bool:
        """Play an operation after the actor's earlier work, its launch by the host, and the events of its memory."""
        ready = max((self.ready_at.get(region.memory, 0.0) for region in op.regions), default=0.0)
        if op.actor == HOST:
            return self.on_host(op, max(self.now, ready))
        queue = self.queue(op.actor)
        if op.kind in TRAVELS:
            self.travel(op, queue, ready)
            return True
        if not all(self.arrived(region) for region in queue.messages):
            return False
        self.settle(queue)
        begin = max(self.now + self.model.machine.launch_s, queue.end, ready)
        if op.kind == "collective":
            met = self.together(op, begin)
            if met is None:
                return False
            begin = met
        self.now += self.model.machine.launch_s
        queue.end = begin + self.model.seconds(op)
        queue.memories.update(region.memory for region in op.regions)
        self.bar(op, begin, queue.end)
        return True

    def on_host(self, op: Op, begin: float) -> bool:
        """Play an operation of the host: FACT with the ranks of its column, or a sum with all ranks."""
        if op.kind == "fact":  # FACT polls other work at every column, and ends only after all ranks have started it
            self.now, self.fact = begin, (op, begin)
            self.together(op, begin)
            return True
        fact, begun = self.fact
        if op.kind == "factored" and fact is not None:
            op = fact
        if op.kind in ("fact", "meet"):
            met = self.together(op, begin)
            if met is None:
                return False
            begin = met
        end = begin + self.model.seconds(op)
        self.bar(op, begin, end)
        self.now = end + (self.now - begun if op is fact else 0.0)
        return True

    def together(self, op: Op, begin: float) -> float | None:
        """Return the time at which the last rank starts a collective operation; None if it is not yet known."""
        there = self.met.setdefault(op.message, {})
        there.setdefault(self.number, begin)
        return max(there.values()) if len(there) == op.message[-1] else None

    def travel(self, op: Op, queue: _Queue, ready: float) -> None:
        """Start a message after the event that it waits for; sends leave one after the other."""
        of_mpi = op.actor.startswith("message")
        begin = max(self.now, ready, self.posted if of_mpi else queue.end)
        if of_mpi:  # its actor is a free one that is used again
            queue.end, queue.messages, queue.memories = 0.0, [], set()
        if op.kind == "send":
            begin = self.sent(begin, self.model.seconds(op) - self.model.machine.network.local_latency_s)
        self.met.setdefault(op.message, {})[op.kind] = begin
        queue.messages.append(_Message(op, begin, self.step))
        queue.memories.update(one.memory for one in op.regions)

    def sent(self, begin: float, seconds: float) -> float:
        """Return the earliest time at which the outgoing link is free for the whole duration of a message."""
        for busy, free in self.port:
            if begin + seconds <= busy:
                break
            begin = max(begin, free)
        insort(self.port, (begin, begin + seconds))
        return begin

    def arrived(self, message: _Message) -> bool:
        """Return whether a message's end time is known; a receive also needs the start time of its send."""
        if message.end is None:
            both = self.met[message.op.message]
            if "send" not in both:
                return False
            begin = max(message.begin, both["send"]) if message.op.kind == "receive" else message.begin
            message.end = begin + self.model.seconds(message.op)
            self.bar(message.op, begin, message.end, message.step)
        return True

    def settle(self, queue: _Queue) -> None:
        """Add the messages whose end times are known."""
        queue.end = max([queue.end, *(one.end or 0.0 for one in queue.messages)])
        queue.messages = []

    def bar(self, op: Op, begin: float, end: float, step: int | None = None) -> None:
        if end > begin:
            lane = LANES.get(op.kind, "device")
            self.played.bars.append(Bar(op, lane, self.step if step is None else step, begin, end))

    # --- waits

    def waits(self, wait: Wait) -> bool:
        """Play a wait for an event, or a poll that found the event complete."""
        end, messages, actor = self.events[wait.event]
        if not all(self.arrived(one) for one in messages):
            return False
        end = max([end, *(one.end or 0.0 for one in messages)])
        if wait.looked:
            self.look(wait.event, actor, end)
        elif wait.actor != HOST:
            queue = self.queue(wait.actor)
            queue.end = max(queue.end, end)
        elif wait.event in self.seen:  # the event of the message that starts next
            self.posted = end
        else:
            self.now = max(self.now, end)
        return True

    def look(self, event: int, actor: str, end: float) -> None:
        """Let the host continue; its later work on this memory, or its next message, comes after the event."""
        self.seen.add(event)
        queue = self.queue(actor)
        if actor.startswith(("message", "nccl")):
            for memory in queue.memories:
                self.ready_at[memory] = max(self.ready_at.get(memory, 0.0), end)
            queue.memories = set()
