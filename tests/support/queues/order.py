"""Find the work in flight while the host is busy, and the places where the host waits for a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.queues.log import HOST, Log, Op, Step, Wait
from tests.support.queues.races import Detector


@dataclass(frozen=True)
class Beside:
    """Host work or a copy to the host, and the device operations that may still run at that time."""

    op: Op
    under_way: tuple[Op, ...]


class _Order(Detector):
    """Read a log in order, and collect the steps and the waits of the host that are needed."""

    def __init__(self, log: Log):
        super().__init__(log)
        self.step, self.beside, self.waits = 0, [], []  # type: ignore[var-annotated]

    def operation(self, op: Op) -> None:
        super().operation(op)
        if op.actor == HOST or op.kind == "down":
            known = self.clock(op.actor)
            left = (one for (actor, number), one in self.ops.items() if actor != HOST and number > known.get(actor, 0))
            self.beside.append(Beside(op, tuple(left)))

    def wait(self, wait: Wait) -> None:
        if wait.actor == HOST and any(
            number > self.clock(HOST).get(actor, 0) for actor, number in self.events[wait.event].items()
        ):
            self.waits.append((self.step, wait))
        super().wait(wait)

    def begin(self, step: Step) -> None:
        self.step = step.index


def _gone_through(log: Log) -> _Order:
    order = _Order(log)
    order.run()
    return order


def beside(log: Log, phase: str) -> Iterator[Beside]:
    """Return the work in flight while the host works in a phase, or while its input is copied to the host."""
    return (one for one in _gone_through(log).beside if one.op.phase == phase)


def host_waits(log: Log) -> dict[int, list[Wait]]:
    """Return the waits of each step in which the host has to wait."""
    waits: dict[int, list[Wait]] = {}
    for step, wait in _gone_through(log).waits:
        waits.setdefault(step, []).append(wait)
    return waits
