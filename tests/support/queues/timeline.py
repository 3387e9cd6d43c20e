"""Play a log with the rates of a machine, to find the time of each operation.

The order is the log's; how long each takes is a roofline with the numbers of `perf/machines.toml`.  What the model
leaves out: kernels of two streams run as if each had the device for itself, the host's time is its launches and FACT,
a message is sent whole by one rank after the other of its messages, and a send does not wait for its receive.  A host
that looked and found something past goes on in the model: what uses the memory in question then waits for it.
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

#: Kinds of work by what they are called in rocHPL's figure 7.
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
    """A rank's bars, and when its device was done with each step."""

    bars: list[Bar] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Model:
    """How long operations take by themselves.

    node      the part p×q of the process grid on a node
    sharing   whether FACT takes the cores of the node's ranks that wait (rocHPL III-B)
    """

    machine: Machine
    sizes: Sizes = field(default_factory=Same)
    node: tuple[int, int] = (1, 1)
    sharing: bool = True

    def seconds(self, op: Op) -> float:
        """As long as its flops take, or its bytes."""
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
        """A kernel's flops at the machine's rate; other kernels are their bytes."""
        if op.kind not in ("gemm", "trsm", "factor") or (op.kind == "gemm" and op.sizes[1] == 1):
            return 0.0
        m, jb, k = self.sizes.of(op)
        rate = self.machine.curve(op.kind, op.precision)
        if op.kind == "gemm":
            edge = self.machine.edge
            return 2.0 * (m + edge) * (jb + edge) * k / rate(k)
        return (m * jb * k if op.kind == "trsm" else m * k**2 - k**3 / 3.0) / rate(jb)

    def fact_s(self, op: Op) -> float:
        """FACT on the host, with the other ranks of the process column."""
        M, nb, _ = self.sizes.of(op)
        p, q = self.node
        P = op.message[-1]
        line = ProcessLine(P, min(p, P), q, self.machine.network)
        return fact_s(self.machine, line, M, round(nb), fact_cores(self.machine, self.node, self.sharing))


def play(logs: Sequence[Log], model: Model) -> list[Played]:
    """The logs of all ranks together."""
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
    """One under way: when it began here."""

    op: Op
    begin: float
    step: int
    end: float | None = None


@dataclass
class _Queue:
    """What an actor has been given: when it will be done, but for messages that have not met their other half."""

    end: float = 0.0
    messages: list[_Message] = field(default_factory=list)
    memories: set[int] = field(default_factory=set)


class _Rank:
    """One rank's log being played.

    now     the host's clock; fact: FACT, and when it was begun
    found   by memory: when what the host saw to be past is past; posted: the same of the message that it begins
    port    when the rank's way out is taken: messages are logged as they are begun by looks, and leave when they can
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
        """Play as far as the others' messages allow; whether anything was played."""
        went = False
        while self.next is not None and self.plays(self.next):
            self.next, went = next(self.records, None), True
        return went

    def plays(self, record: Record) -> bool:
        """Play one record; False: not yet."""
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
        """One of an actor, after what the actor has, what the host has begun, and what is known of its memory."""
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
        """What the host does itself; FACT with the ranks of its column, a sum with all."""
        if op.kind == "fact":  # it looks after other things at every column, and ends once all have begun it
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
        """When the last rank begins what several do together; None: not yet known."""
        there = self.met.setdefault(op.message, {})
        there.setdefault(self.number, begin)
        return max(there.values()) if len(there) == op.message[-1] else None

    def travel(self, op: Op, queue: _Queue, ready: float) -> None:
        """Begin a message: after what it was posted behind; sends leave one after the other."""
        of_mpi = op.actor.startswith("message")
        begin = max(self.now, ready, self.posted if of_mpi else queue.end)
        if of_mpi:  # its actor is one that is free again
            queue.end, queue.messages, queue.memories = 0.0, [], set()
        if op.kind == "send":
            begin = self.sent(begin, self.model.seconds(op) - self.model.machine.network.local_latency_s)
        self.met.setdefault(op.message, {})[op.kind] = begin
        queue.messages.append(_Message(op, begin, self.step))
        queue.memories.update(one.memory for one in op.regions)

    def sent(self, begin: float, seconds: float) -> float:
        """When a message leaves that may begin then: where the way out is free for so long."""
        for busy, free in self.port:
            if begin + seconds <= busy:
                break
            begin = max(begin, free)
        insort(self.port, (begin, begin + seconds))
        return begin

    def arrived(self, message: _Message) -> bool:
        """Whether it is known when a message ends: a receive begins when it is sent, too."""
        if message.end is None:
            both = self.met[message.op.message]
            if "send" not in both:
                return False
            begin = max(message.begin, both["send"]) if message.op.kind == "receive" else message.begin
            message.end = begin + self.model.seconds(message.op)
            self.bar(message.op, begin, message.end, message.step)
        return True

    def settle(self, queue: _Queue) -> None:
        """Its messages have ended at known times."""
        queue.end = max([queue.end, *(one.end or 0.0 for one in queue.messages)])
        queue.messages = []

    def bar(self, op: Op, begin: float, end: float, step: int | None = None) -> None:
        if end > begin:
            lane = LANES.get(op.kind, "device")
            self.played.bars.append(Bar(op, lane, self.step if step is None else step, begin, end))

    # --- waits

    def waits(self, wait: Wait) -> bool:
        """An actor goes on after an event, or has looked and found it past."""
        end, messages, actor = self.events[wait.event]
        if not all(self.arrived(one) for one in messages):
            return False
        end = max([end, *(one.end or 0.0 for one in messages)])
        if wait.looked:
            self.look(wait.event, actor, end)
        elif wait.actor != HOST:
            queue = self.queue(wait.actor)
            queue.end = max(queue.end, end)
        elif wait.event in self.seen:  # the event of the message that is begun next
            self.posted = end
        else:
            self.now = max(self.now, end)
        return True

    def look(self, event: int, actor: str, end: float) -> None:
        """The host goes on: what it begins with this memory, or posts as a message, comes after the event."""
        self.seen.add(event)
        queue = self.queue(actor)
        if actor.startswith(("message", "nccl")):
            for memory in queue.memories:
                self.ready_at[memory] = max(self.ready_at.get(memory, 0.0), end)
            queue.memories = set()
