"""Tuning: measure kernels, search settings by short runs, check the winner against the defaults, keep it.

kernels     every probe of every layout, up to a fifth of the budget; then a machine's table a layout, for `simulate`
search      candidates that the model likes best, in trials that are real runs by the benchmark's own entry; fewer
            after each round of them (`perf.halving`)
check       the defaults and the fastest candidate in turns, first one, then the other in front, in runs that the search
            has not seen; what is stored is the candidate if its median is no lower, else the defaults

Everything measured is in a journal at once, and what comes next is a function of the journal: a second call goes on
where the first one stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mxpeak.bench.registry import kind_of
from mxpeak.errors import UsageError
from mxpeak.perf.simulation.machine_from_measurements import Layout as Measured
from mxpeak.perf.simulation.machine_from_measurements import machine_table, to_toml
from mxpeak.perf.simulation.machines import Machine, machine_from
from mxpeak.perf.tuned import Winner
from mxpeak.records import rate_text
from mxpeak.runtime.tuned import Store
from mxpeak.verbs.tune.candidates import Candidate, Layout
from mxpeak.verbs.tune.groups import Group
from mxpeak.verbs.tune.job import Record, Task, kernels_of, probe_of, typed
from mxpeak.verbs.tune.plan import TunePlan, race
from mxpeak.verbs.tune.successive_halving import LEAST_PAIRS, Check, next_turn
from mxpeak.verbs.tune.trials import Trials

#: Shares of the budget: of all for kernels, of a benchmark's part for its search.
KERNELS, SEARCH = 0.2, 0.55
#: A benchmark gets so many seconds at the least, so that its check ends: later ones may have to wait for another call.
LEAST_SLICE_S = 45.0
#: Pairs of runs in a check, where there is time.
MOST_PAIRS = 7
#: A budget so many times that of an earlier search is worth larger trials.
LARGER = 2.0


class Tuner:
    """One call of `mxpeak tune`."""

    def __init__(self, plan: TunePlan, store: Store, group: Group, say: Callable[[str], None]):
        self.plan, self.store, self.say = plan, store, say
        self.begin = time.time()
        self.notes: list[str] = []
        self.checks: dict[str, dict[str, Any]] = {}
        self.layouts = list(plan.layouts)
        self.machines: dict[Layout, Machine] = {}
        self.trials = Trials(plan, store, group)
        self.book, trouble = store.book()
        for text in filter(None, (self.trials.problem, trouble)):
            self.note(text)

    def run(self) -> dict[str, Any]:
        """All stages, as far as there is time; the sections of the result."""
        self.layouts = [layout for layout in self.plan.layouts if self.measure(layout)]
        todo = [name for name in self.plan.benchmarks if not self.is_done(name)]
        for k, name in enumerate(todo):
            left = self.begin + self.plan.budget_s - time.time()
            if left < min(LEAST_SLICE_S, self.plan.budget_s) / 3:
                self.note(
                    f"{name} was not tuned, because only {max(0.0, left):.0f} s of the budget are left; run "
                    "mxpeak tune again"
                )
                continue
            self.tune(name, time.time() + min(left, max(LEAST_SLICE_S, left / (len(todo) - k))))
        for layout in list(self.machines):  # trials may have counted HPL-MxP's steps
            self.make_table(layout)
        return self.section()

    def note(self, text: str) -> None:
        """Something to be known, now and in the result."""
        self.notes.append(text)
        self.say(f"note: {text}")

    # --- kernels

    def measure(self, layout: Layout) -> bool:
        """All kernels of a layout, and its table; whether such ranks can be had."""
        found = kernels_of(self.trials.records, layout.ranks, layout.threads, self.plan.device)
        here = {"kind": "complete", "ranks": layout.ranks, "threads": layout.threads, "device": self.plan.device}
        if here not in self.trials.records:
            share = KERNELS * self.plan.budget_s / len(self.plan.layouts)
            known = [probe_of(record) for record in found]
            try:
                tasks: list[Task] = [{"do": "probes", "known": known, "scale": self.plan.scale}]
                self.trials.do(layout, tasks, time.time() + share)
            except UsageError as error:
                if layout == self.plan.layouts[0]:
                    raise
                self.note(f"mxpeak tune skips {layout}: {error}")
                return False
        self.make_table(layout)
        return True

    def make_table(self, layout: Layout) -> None:
        """The machine that the kernels of a layout describe, kept where `mxpeak simulate --machine tuned` finds it."""
        found = kernels_of(self.trials.records, layout.ranks, layout.threads, self.plan.device)
        steps = [
            r["iterations"]
            for r in self.trials.records
            if r["kind"] == "trial"
            and r["benchmark"] == "hpl-mxp"
            and (r["ranks"], r["threads"]) == (layout.ranks, layout.threads)
            and r["iterations"]
        ]
        per_node = -(-layout.ranks // layout.nodes)
        known = Measured(
            title=f"this machine, {counted(layout.ranks, 'rank')} of {counted(layout.threads, 'thread')}",
            ranks=layout.ranks,
            threads=layout.threads,
            ranks_per_node=per_node,
            cores=self.plan.cores,
            memory_bytes=self.plan.memory_bytes / (1 if self.plan.on_gpu else per_node),
            steps=max(steps, default=None),
        )
        try:
            table = machine_table(found, known)
            self.machines[layout] = machine_from("tuned", {"tuned": table}, "mxpeak tune")
        except UsageError as error:
            self.note(f"{layout} has no model yet: {error}")
            return
        self.store.write(self.store.table_file(layout.ranks, layout.threads), to_toml("tuned", table))

    # --- one benchmark

    def is_done(self, benchmark: str) -> bool:
        """Whether an earlier call has checked this one with a budget like this."""
        plan = self.planned(benchmark)
        if plan is None or self.key(benchmark) not in self.book.winners:
            return False
        check = self.check_of(benchmark, plan)
        if len(check.tuned) < LEAST_PAIRS:
            return False
        self.note(f"{benchmark} is already tuned; use --fresh to start again, or a longer --budget to try larger sizes")
        winner = self.book.winners[self.key(benchmark)]
        self.checks[benchmark] = {**check.section(), "size": plan["size"], "stored": stored(winner)}
        return True

    def key(self, benchmark: str) -> str:
        """Of what a winner would be kept."""
        layout = self.plan.layouts[0]
        return Winner(
            benchmark=benchmark,
            mode=self.trials.mode(benchmark),
            device=self.plan.device,
            ranks=layout.ranks,
            threads=layout.threads,
            any_layout=len(self.plan.layouts) > 1,
            size={},
            settings={},
        ).key

    def planned(self, benchmark: str) -> Record | None:
        """The search that an earlier call has begun, if it is like this one."""
        for record in reversed(self.trials.records):
            if record["kind"] == "plan" and record["key"] == self.key(benchmark):
                same = all(record["size"].get(name) == n for name, n in self.size_asked(benchmark).items())
                return record if same and self.plan.budget_s < LARGER * record["budget_s"] else None
        return None

    def size_asked(self, benchmark: str) -> dict[str, int]:
        """The size that was given for this kind of benchmark."""
        names = ("n",) if kind_of(benchmark) == "lu" else ("nx",)
        return {name: n for name, n in self.plan.size.items() if name in names}

    def tune(self, benchmark: str, until: float) -> None:
        """Search, check and keep."""
        search_until = time.time() + SEARCH * (until - time.time())
        plan = self.planned(benchmark) or self.new_plan(benchmark, search_until - time.time())
        challenger, over = self.search(benchmark, plan, search_until)
        if challenger is None:
            why = "no settings except the defaults could be tried, or passed; try a larger -N, --nx or --budget"
            self.note(f"{benchmark}: {why if over else 'the budget ended before the search; run mxpeak tune again'}")
            return
        check = self.check(benchmark, plan, challenger, until)
        if len(check.tuned) < LEAST_PAIRS:
            self.note(f"{benchmark}: the budget ended before the check; run mxpeak tune again")
            return
        self.keep(benchmark, plan, challenger, check)

    def new_plan(self, benchmark: str, seconds: float) -> Record:
        """The size of trials and the candidates, written down so that a later call searches among the same."""
        found = race(self.plan, benchmark, self.layouts, self.machines, seconds)
        for text in found.notes:
            self.note(text)
        plan = {
            "kind": "plan",
            "key": self.key(benchmark),
            "budget_s": self.plan.budget_s,
            "size": found.size,
            "candidates": [
                {"ranks": one.layout.ranks, "threads": one.layout.threads, "settings": dict(one.settings)}
                for one in found.candidates
            ],
        }
        self.store.note([plan])
        self.trials.records.append(plan)
        return plan

    # --- search and check

    def search(self, benchmark: str, plan: Record, until: float) -> tuple[Candidate | None, bool]:
        """The fastest candidate besides the defaults, None where too little has run; and whether the race is over."""
        candidates = {one.key: one for one in self.candidates(plan)}
        default = next(iter(candidates))
        while True:
            samples = {key: self.trials.rates(benchmark, plan, one, "search") for key, one in candidates.items()}
            turn = next_turn(list(candidates), samples)
            if not turn.batch or time.time() >= until:
                break
            if not self.trials.run(benchmark, plan, [candidates[key] for key in turn.batch], "search", until):
                break
        alive = [candidates[key] for key in turn.alive if key != default and samples[key]]
        return (alive[0] if alive else None), not turn.batch

    def candidates(self, plan: Record) -> list[Candidate]:
        """Those of a plan that can be started here."""
        known = {(one.ranks, one.threads): one for one in self.layouts}
        return [
            Candidate(known[one["ranks"], one["threads"]], one["settings"])
            for one in plan["candidates"]
            if (one["ranks"], one["threads"]) in known
        ]

    def check(self, benchmark: str, plan: Record, challenger: Candidate, until: float) -> Check:
        """The defaults and the candidate in turns, as many pairs as there is time for."""
        default = self.candidates(plan)[0]
        while (done := len(self.check_of(benchmark, plan, challenger).tuned)) < MOST_PAIRS:
            pairs = LEAST_PAIRS - done if done < LEAST_PAIRS else min(2, MOST_PAIRS - done)
            both = (default, challenger)
            turns = [one for pair in range(done, done + pairs) for one in (both if pair % 2 == 0 else both[::-1])]
            if time.time() >= until or not self.trials.run(benchmark, plan, turns, "check", until):
                break
        return self.check_of(benchmark, plan, challenger)

    def check_of(self, benchmark: str, plan: Record, challenger: Candidate | None = None) -> Check:
        """What the runs of a check say so far, whole pairs only."""
        found = self.candidates(plan)
        if challenger is None:  # of the one that was checked
            checked = [one for one in found[1:] if self.trials.rates(benchmark, plan, one, "check")]
            challenger = checked[-1] if checked else found[0]
        rates = [self.trials.rates(benchmark, plan, one, "check") for one in (found[0], challenger)]
        pairs = min(map(len, rates))
        return Check(tuple(rates[0][:pairs]), tuple(rates[1][:pairs]))

    # --- what is kept

    def keep(self, benchmark: str, plan: Record, challenger: Candidate, check: Check) -> None:
        """Store the winner, and say what the check has shown."""
        one = challenger if check.taken else self.candidates(plan)[0]
        low = next(
            (
                r["precision"]
                for r in reversed(self.trials.records)
                if r["kind"] == "trial" and r["benchmark"] == benchmark and r["passed"]
            ),
            "",
        )
        winner = Winner(
            benchmark=benchmark,
            mode=self.trials.mode(benchmark),
            device=self.plan.device,
            ranks=one.layout.ranks,
            threads=one.layout.threads,
            any_layout=len(self.plan.layouts) > 1,
            size=plan["size"],
            settings=dict(one.settings),
            precision=str(low) if benchmark == "hpl-mxp" else "",
            rate_flops=check.medians[1 if check.taken else 0],
            gain=check.gain if check.taken else 0.0,
            verdict=check.verdict,
            when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        self.book.add(winner)
        self.store.write_book(self.book)
        told = f"{typed(challenger.settings)} on {challenger.layout}"
        tried = {"candidate": dict(challenger.settings), "layout": str(challenger.layout), "candidate_text": told}
        self.checks[benchmark] = {**check.section(), **tried, "size": plan["size"], "stored": stored(winner)}
        self.say(f"{benchmark}: {check.verdict}, {rate_text(check.medians[1])} against {rate_text(check.medians[0])}")

    def section(self) -> dict[str, Any]:
        """The result."""
        mine = [one for one in self.book.winners.values() if one.benchmark in self.plan.benchmarks]
        return {
            "curves": [r for r in self.trials.records if r["kind"] == "kernel"],
            "trials": [r for r in self.trials.records if r["kind"] == "trial"],
            "winners": mine,
            "check": self.checks,
            "notes": self.notes,
            "elapsed_s": time.time() - self.begin,
        }


def stored(winner: Winner) -> str:
    """What a run takes of a winner, as flags."""
    layout = {"ranks": str(winner.ranks), "threads": str(winner.threads)}
    return typed({**(layout if winner.any_layout and winner.ranks > 1 else {}), **winner.settings})


def counted(number: int, name: str) -> str:
    """So many of something."""
    return f"{number} {name}{'s' * (number != 1)}"
