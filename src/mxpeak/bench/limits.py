"""Measure the rate that a kernel sustains on all ranks at once, before and after a run, as the limit of its rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from statistics import median
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.perf.host import core_groups
from mxpeak.records import Caution

#: A reading lasts this share of the run's time, within bounds. A processor exceeds its sustained rate for some tenths
#: of a second, until its clock or power budget is lowered. A reading of GEMM therefore lasts more than twice as long;
#: memory has no such burst. A reading is at most TIMES as long as a short run.
SHARE, MIN_S, READ_MIN_S, MAX_S, TIMES = 0.03, 1.0, 0.3, 10.0, 10.0
#: The fewest samples of a reading. Samples that begin in the first half of its time are ignored, because of the burst.
MIN_SAMPLES = 3
#: The cases of a series share a reading of the limit until its age is this many times its duration. Readings then take
#: about a tenth of the time of the series.
FRESH = 10.0
#: The change of speed from which a share is marked as uncertain. The speed during the run is between those of the
#: readings. A change of 10 % therefore moves the share by up to ±5 %, which is also its repeatability on a quiet
#: machine.
DRIFT = 0.10
#: The shortest reading in which a change of speed can be distinguished from noise.
MIN_DRIFT_READING_S = 0.1
#: An array that no cache holds has the size of the node's caches times CACHES, but at most 1/SPARE of its memory.
CACHES, SPARE = 2, 4
#: The fewest bytes of such an array on the host and on a GPU: no GPU has caches of more than 256 MiB.
MIN_BYTES, GPU_MIN_BYTES = 2**28, 2**29

READ, READ_IN_CACHE = "read bandwidth", "read bandwidth in cache"
DRIFTED = (
    f"the machine's speed changed by more than {100 * DRIFT:.0f} % during the run, or between two measurements of the "
    "limit, so shares marked * are uncertain by as much"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement of a limit: the sustained rate, the rate of the best sample, the duration and the end time."""

    rate: float
    burst: float
    took_s: float
    ended_s: float


def reading(timed: Callable[[], float], amount: float, run_s: Callable[[float], float], least_s: float) -> Reading:
    """Repeat work of `amount` flops or bytes and return the median rate in the second half of the time.

    `timed` runs the work and returns its time in seconds, which is the same on every rank. `run_s` returns the
    duration of the measured run in seconds at a given rate. `least_s` is the shortest reading, unless the run itself
    is shorter.
    """
    samples = [timed()]
    seconds = length(run_s(amount / samples[0]), least_s)
    while len(samples) < MIN_SAMPLES or sum(samples) < seconds:
        samples.append(timed())
    total, begins = sum(samples), accumulate(samples, initial=0.0)
    later = [sample for sample, begin in zip(samples, begins) if begin >= total / 2]
    sustained = median(later or samples[-1:])
    return Reading(amount / sustained, amount / min(samples), total, time.monotonic())


def length(run_s: float, least_s: float) -> float:
    """Return the duration of a reading in seconds for a run of `run_s` seconds."""
    return min(TIMES * run_s, max(least_s, SHARE * run_s), MAX_S)


class Readings:
    """The latest reading of each limit in a series of cases."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, Reading] = {}

    def before(self, what: Hashable, comm: Communicator, measure: Callable[[], Reading]) -> Reading:
        """Return the latest reading of the limit `what` if it is recent, otherwise measure a new one.

        Collective over comm.
        """
        latest = self._fresh(what, comm)
        return self._new(what, measure) if latest is None else latest

    def after(
        self, what: Hashable, comm: Communicator, measure: Callable[[], Reading], *, last: bool
    ) -> Reading | None:
        """Measure the limit `what` again and return the reading. Collective over comm.

        Returns None if the latest reading is recent and the series continues.
        """
        return self._new(what, measure) if last or self._fresh(what, comm) is None else None

    def _fresh(self, what: Hashable, comm: Communicator) -> Reading | None:
        latest = self._latest.get(what)
        if latest is None or not comm.bcast_object(time.monotonic() - latest.ended_s < FRESH * latest.took_s):
            return None
        return latest

    def _new(self, what: Hashable, measure: Callable[[], Reading]) -> Reading:
        self._latest[what] = measure()
        return self._latest[what]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit with its readings, and the rates that the benchmark itself reached.

    unit      rate_flops or rate_bytes
    before    None with --warmup none: then there is no limit
    after     None even if the previous reading served several cases of a series
    reached   pairs of a phase and its rate
    """

    name: str
    unit: str
    before: Reading | None
    after: Reading | None
    reached: tuple[tuple[str, float], ...] = ()

    def including(self, name: str, rate: float) -> Limit:
        """Return the limit with an additional rate that the benchmark reached."""
        return replace(self, reached=(*self.reached, (name, rate)))

    @property
    def rate(self) -> float | None:
        """Return the largest of the measured and reached rates, or None without a reading."""
        rates = [reading.rate for reading in self._readings]
        return max([*rates, *(rate for _, rate in self.reached)]) if rates else None

    @property
    def drift(self) -> float | None:
        """Return the relative excess of the limit's rate over the smallest reading, or None without a reading."""
        least, rate = min((reading.rate for reading in self._readings), default=0.0), self.rate
        return None if rate is None or not least else rate / least - 1.0

    @property
    def drifted(self) -> bool:
        """Return whether the speed of the machine changed so much that the share is uncertain."""
        measurable = all(reading.took_s >= MIN_DRIFT_READING_S for reading in self._readings)
        return measurable and self.drift is not None and self.drift > DRIFT

    def share(self, rate: float) -> float | None:
        """Return the ratio of a rate to the limit, or None if no limit was measured."""
        return rate / self.rate if self.rate else None

    def section(self) -> dict[str, Any] | None:
        """Return the section of a result that describes the limit, or None if the limit was not measured."""
        if self.before is None:
            return None
        fastest = max(self.reached, key=itemgetter(1), default=None)
        return {
            "name": self.name,
            self.unit: self.rate,
            "rate": self.rate,
            "before": self.before.rate,
            "after": None if self.after is None else self.after.rate,
            "burst": max(reading.burst for reading in self._readings),
            "reached": None if fastest is None else {"name": fastest[0], "rate": fastest[1]},
            "drift": self.drift,
            "drifted": self.drifted,
        }

    def cautions(self) -> list[Caution]:
        """Return the warning about an uncertain share. Its text is the same for all cases, so it is shown only once."""
        return [Caution("drift", DRIFTED, "stop other programs, and run again")] if self.drifted else []

    @property
    def _readings(self) -> list[Reading]:
        return [reading for reading in (self.before, self.after) if reading is not None]


def read_limit(
    before: Reading | None, after: Reading | None, touched: float, machine: Mapping[str, Any], *, on_gpu: bool
) -> Limit:
    """Return the read-bandwidth limit for `touched` bytes on all nodes.

    Its name shows whether caches may hold the bytes.
    """
    return Limit(READ_IN_CACHE if in_cache(touched, machine, on_gpu=on_gpu) else READ, "rate_bytes", before, after)


def in_cache(touched: float, machine: Mapping[str, Any], *, on_gpu: bool) -> bool:
    """Return whether the data may fit in the last-level caches of all nodes or GPUs."""
    if on_gpu:
        return touched <= GPU_MIN_BYTES / CACHES * int(machine["device_count"])
    return touched <= node_caches(machine) * int(machine["nodes"])


def node_caches(machine: Mapping[str, Any]) -> int:
    """Return the size of all last-level caches of a node in bytes, or 0 if the system does not report the caches."""
    cache_bytes = int(machine.get("l3_bytes") or machine.get("l2_bytes") or 0)
    return cache_bytes * len(core_groups(affinity=range(os.cpu_count() or 1)))


def uncached_bytes(machine: Mapping[str, Any], available: float, ranks_a_node: int, *, on_gpu: bool) -> int:
    """Return the size in bytes of an array per rank that exceeds the caches.

    The arrays of a node take at most a quarter of the `available` bytes of the node.
    """
    least = GPU_MIN_BYTES if on_gpu else max(MIN_BYTES, CACHES * node_caches(machine) // ranks_a_node)
    return min(least, max(int(available) // (SPARE * ranks_a_node), 2**20))
