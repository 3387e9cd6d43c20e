"""Run trials, which are short runs of a benchmark with different settings, and record them in the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from mxpeak.runtime.tuned import Store
from mxpeak.verbs.tune.candidates import Candidate, RankLayout
from mxpeak.verbs.tune.groups import RankPool
from mxpeak.verbs.tune.job import Record, Task, TuneJob
from mxpeak.verbs.tune.plan import TunePlan


def has(record: Record, values: Mapping[str, object]) -> bool:
    """Return whether a record contains all of these keys with these values."""
    return all(record.get(name) == value for name, value in values.items())


class Trials:
    """Runs trials, and stores the records of all trials of this and earlier calls."""

    def __init__(self, plan: TunePlan, store: Store, group: RankPool):
        self.plan, self.store, self.group = plan, store, group
        self.records, self.problem = store.journal()
        self._spent_s, self._runs, self._known = 0.0, 0, len(self.records)

    def mode(self, benchmark: str) -> str:
        """Return the mode of a benchmark, `official` or `explore`; HPL has only the official mode."""
        return "official" if benchmark == "hpl" else self.plan.mode

    def rates(self, benchmark: str, plan: Record, candidate: Candidate, phase: str) -> list[float]:
        """Return the recorded rates of a candidate in a phase, in flop/s."""
        layout = {"ranks": candidate.layout.ranks, "threads": candidate.layout.threads, "device": self.plan.device}
        wanted = {**self.task(benchmark, plan, candidate, phase), **layout, "kind": "trial"}
        del wanted["do"]
        return [r["rate_flops"] for r in self.records if has(r, wanted)]

    def task(self, benchmark: str, plan: Record, candidate: Candidate, phase: str) -> Task:
        """Return the task of a trial of a candidate, with the file of its BLAS library."""
        name = candidate.settings.get("blas")
        return {
            "do": "trial",
            "benchmark": benchmark,
            "mode": self.mode(benchmark),
            "size": plan["size"],
            "settings": dict(candidate.settings),
            "phase": phase,
            **({"library": plan["libraries"][name]} if name is not None else {}),
        }

    def run(self, benchmark: str, plan: Record, batch: Sequence[Candidate], phase: str, until: float) -> bool:
        """Run a batch of candidates in order, and return whether any trial of this phase has been recorded.

        A search runs the batch layout by layout. Each group of ranks starts with an uncounted trial, which touches
        memory and starts threads. In a check with two layouts, each trial starts new ranks, as `mxpeak run` does.
        """
        before = len(self.records)
        if phase == "search":
            batch = sorted(batch, key=lambda candidate: self.plan.layouts.index(candidate.layout))
        turns = len({candidate.layout for candidate in batch}) > 1
        while batch and time.time() < until:
            layout = batch[0].layout
            count = next((k for k, candidate in enumerate(batch) if candidate.layout != layout), len(batch))
            tasks = [self.task(benchmark, plan, candidate, phase) for candidate in batch[:count]]
            if phase == "search" or not turns:
                tasks.insert(0, self.task(benchmark, plan, batch[0], "warm-up"))
            self.do(layout, tasks, until)
            batch = batch[count:]
        return any(r.get("phase") == phase for r in self.records[before:])

    @property
    def has_progress(self) -> bool:
        """Return whether this call has recorded a run that is not only a warm-up."""
        new = self.records[self._known :]
        return any(r["kind"] == "trial" and r.get("phase") != "warm-up" for r in new)

    @property
    def seconds_per_run(self) -> float:
        """Return the mean time of a run in this call, including the start of its ranks; if no run ended, all the time.

        Runs that only warm up count as well, because each later search needs them again.
        """
        return self._spent_s / max(1, self._runs)

    def do(self, layout: RankLayout, tasks: list[Task], until: float) -> None:
        """Perform tasks on the ranks of a layout, and reload the records from the journal."""
        place = {name: getattr(self.plan, name) for name in ("device", "kernels", "comm", "quiet")}
        journal, ranks, threads = str(self.store.journal_file), layout.ranks, layout.threads
        begin, before = time.time(), len(self.records)
        self.group.do(TuneJob(ranks=ranks, threads=threads, tasks=tasks, journal=journal, until_unix=until, **place))
        self.records, _ = self.store.journal()
        if tasks[0]["do"] == "trial":
            self._spent_s += time.time() - begin
            self._runs += len(self.records) - before
