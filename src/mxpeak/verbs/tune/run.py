"""Measure kernels, search settings by short runs, check the fastest settings against the defaults, and store them.

kernels     all probes on each layout, within a fifth of the budget; they give a machine table per layout
search      short runs of the candidates that the model ranks first, with fewer candidates in each round
            (`successive_halving`)
check       alternating runs of the defaults and the fastest candidate; the candidate is stored if its median is not
            lower, otherwise the defaults

If the budget ends before the check, the candidate is stored if all runs so far show that it is clearly faster. If it
ends the search, but not the check, the fastest candidate so far is checked and stored. In both cases, a note states how
long the other runs need, the stored settings contain their number, and the next call continues.

Each measurement is immediately appended to the journal. The next step depends only on the journal, so a second call
continues after the last measurement of the first call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from mxpeak.bench.registry import kind_of
from mxpeak.errors import UsageError
from mxpeak.options import count_text
from mxpeak.perf.simulation.machine_from_measurements import Layout, machine_table, to_toml
from mxpeak.perf.simulation.machines import Machine, machine_from
from mxpeak.perf.tuned import Winner
from mxpeak.records import rate_text
from mxpeak.runtime.tuned import Store
from mxpeak.verbs.tune.candidates import Candidate, RankLayout
from mxpeak.verbs.tune.groups import RankPool
from mxpeak.verbs.tune.job import Record, Task, kernels_of, probe_of, typed
from mxpeak.verbs.tune.plan import TunePlan, plan_search
from mxpeak.verbs.tune.successive_halving import MIN_PAIRS, WinnerCheck, max_runs, next_turn
from mxpeak.verbs.tune.trials import Trials, has
from mxpeak.watch.progress import duration

#: Share of the budget for kernels, and share of a benchmark's time for its search.
KERNELS, SEARCH = 0.2, 0.55
#: Minimum seconds per benchmark, so that its check ends. The other benchmarks may need another call.
MIN_SLICE_S = 45.0
#: Largest number of pairs of runs in a check.
MAX_PAIRS = 7
#: If the budget is larger than an earlier one by this factor, a new search with larger trials replaces the old search.
LARGER = 2.0
#: Advice after a budget that ended early, and after one in which no run ended.
AGAIN, LONGER = "repeat the command to continue", "no run ended within the budget, so use a longer --budget"


class Tuner:
    """A call of `mxpeak tune`, which measures, searches, checks and stores."""

    def __init__(self, plan: TunePlan, store: Store, group: RankPool, say: Callable[[str], None]):
        self.plan, self.store, self.say = plan, store, say
        self.begin = time.time()
        self.notes: list[str] = []
        self.checks: dict[str, dict[str, Any]] = {}
        self.remaining: dict[str, dict[str, float]] = {}
        self.layouts = list(plan.layouts)
        self.machines: dict[RankLayout, Machine] = {}
        self.trials = Trials(plan, store, group)
        self.book, trouble = store.book()
        for text in filter(None, (self.trials.problem, trouble)):
            self.note(text)

    def run(self) -> dict[str, Any]:
        """Run all stages within the budget, and return the sections of the JSON result."""
        self.layouts = [layout for layout in self.plan.layouts if self.measure(layout)]
        todo = [name for name in self.plan.benchmarks if not self.is_done(name)]
        begun = False
        for k, name in enumerate(todo):
            left_s = self.begin + self.plan.budget_s - time.time()
            if left_s < min(MIN_SLICE_S, self.plan.budget_s) / 3:
                left = f"{max(0.0, left_s):.0f} s of the budget are left"
                advice = "run mxpeak tune again" if begun else f"use a larger --budget than {self.plan.budget_s:g}s"
                self.note(f"{name} was not tuned, because only {left}; {advice}")
                continue
            begun = True
            self.tune(name, time.time() + min(left_s, max(MIN_SLICE_S, left_s / (len(todo) - k))))
        for layout in list(self.machines):  # trials of HPL-MxP may have measured the number of refinement steps
            self.make_table(layout)
        return self.section()

    def note(self, text: str) -> None:
        """Print a note and add it to the result."""
        self.notes.append(text)
        self.say(f"note: {text}")

    def measure(self, layout: RankLayout) -> bool:
        """Measure the kernels of a layout and write its machine table; return False if the layout must be skipped.

        A layout that raises a UsageError is skipped, except the first layout, whose error is raised.
        """
        records = kernels_of(self.trials.records, layout.ranks, layout.threads, self.plan.device)
        here = {"kind": "complete", "ranks": layout.ranks, "threads": layout.threads, "device": self.plan.device}
        if here not in self.trials.records:
            share = KERNELS * self.plan.budget_s / len(self.plan.layouts)
            try:
                measured = [probe_of(record) for record in records]
                tasks: list[Task] = [{"do": "probes", "known": measured, "scale": self.plan.scale}]
                before = len(self.trials.records)
                self.trials.do(layout, tasks, time.time() + share)
                loaded = [r["seconds"] for r in self.trials.records[before:] if r["kind"] == "loaded"]
                self.begin += sum(loaded)  # compiling the kernels at their first use may take longer than the budget
            except UsageError as error:
                if layout == self.plan.layouts[0]:
                    raise
                self.note(f"mxpeak tune skips {layout}: {error}")
                return False
        self.make_table(layout)
        return True

    def make_table(self, layout: RankLayout) -> None:
        """Compute the machine table of a layout, and write it for `mxpeak simulate --machine tuned`."""
        records = kernels_of(self.trials.records, layout.ranks, layout.threads, self.plan.device)
        here = {"kind": "trial", "benchmark": "hpl-mxp", "ranks": layout.ranks, "threads": layout.threads}
        steps = [r["iterations"] for r in self.trials.records if has(r, here) and r["iterations"]]
        per_node = -(-layout.ranks // layout.nodes)
        title = f"this machine, {count_text(layout.ranks, 'rank')} of {count_text(layout.threads, 'thread')}"
        memory_bytes = self.plan.memory_bytes / (1 if self.plan.on_gpu else per_node)
        measured = Layout(
            title=title, ranks=layout.ranks, threads=layout.threads, ranks_per_node=per_node, cores=self.plan.cores,
            memory_bytes=memory_bytes, steps=max(steps, default=None),
        )  # fmt: skip
        try:
            table = machine_table(records, measured)
            self.machines[layout] = machine_from("tuned", {"tuned": table}, "mxpeak tune")
        except UsageError as error:
            self.note(f"{layout} has no model yet: {error}")
            return
        self.store.write(self.store.table_file(layout.ranks, layout.threads), to_toml("tuned", table))

    def is_done(self, benchmark: str) -> bool:
        """Return whether earlier calls with a similar budget have tuned the benchmark.

        If so, print a note, and add the check of the last call to the result. A search that a budget has cut short does
        not count, even if its fastest candidate so far was checked.
        """
        plan = self.planned(benchmark)
        if plan is None or self.key(benchmark) not in self.book.winners:
            return False
        challenger = self.fastest(benchmark, plan)
        if challenger is None or self.progress(benchmark, plan, challenger)[1]:
            return False
        check = self.check_of(benchmark, plan, challenger)
        self.note(f"{benchmark} is already tuned; use --fresh to start again, or a longer --budget to try larger sizes")
        winner = self.book.winners[self.key(benchmark)]
        self.checks[benchmark] = {**check.section(), "size": plan["size"], "stored": stored(winner)}
        return True

    def key(self, benchmark: str) -> str:
        """Return the key of the benchmark's search in the book of winners."""
        return self.winner(benchmark, Candidate(self.plan.layouts[0], {}), {}).key

    def winner(self, benchmark: str, candidate: Candidate, size: dict[str, int], **check: Any) -> Winner:
        """Return a candidate of a search as a Winner, the form in which settings are stored."""
        return Winner(
            benchmark=benchmark, mode=self.trials.mode(benchmark), device=self.plan.device,
            ranks=candidate.layout.ranks, threads=candidate.layout.threads,
            any_layout=len(self.plan.layouts) > 1, size=size, settings=dict(candidate.settings), **check,
        )  # fmt: skip

    def planned(self, benchmark: str) -> Record | None:
        """Return the search plan that an earlier call recorded, or None if this call cannot continue it.

        A plan can be continued if it has the requested size and a similar budget.
        """
        for record in reversed(self.trials.records):
            if record["kind"] == "plan" and record["key"] == self.key(benchmark):
                same = all(record["size"].get(name) == n for name, n in self.requested_size(benchmark).items())
                same &= record.get("orders", []) == self.requested_orders(benchmark)
                same &= record.get("libraries", {}) == self.requested_libraries(benchmark)
                return record if same and self.plan.budget_s < LARGER * record["budget_s"] else None
        return None

    def requested_size(self, benchmark: str) -> dict[str, int]:
        """Return the trial size that the user has set for this benchmark: N or NX; empty if the user has set none."""
        names = ("n",) if kind_of(benchmark) == "lu" else ("nx",)
        return {name: n for name, n in self.plan.size.items() if name in names}

    def requested_orders(self, benchmark: str) -> list[int]:
        """Return the orders to search for this benchmark; empty if the user has set none or only one."""
        return list(self.plan.orders) if kind_of(benchmark) == "lu" else []

    def requested_libraries(self, benchmark: str) -> dict[str, Any]:
        """Return the BLAS libraries to compare for this benchmark, with the file of each."""
        return {name: dict(file) for name, file in self.plan.libraries.items()} if kind_of(benchmark) == "lu" else {}

    def tune(self, benchmark: str, until: float) -> None:
        """Search, check and store the settings of a benchmark before the time `until`."""
        search_until = time.time() + SEARCH * (until - time.time())
        plan = self.planned(benchmark) or self.new_plan(benchmark, search_until - time.time())
        challenger, over = self.search(benchmark, plan, search_until)
        if challenger is None and over:
            self.note(
                f"{benchmark}: no settings except the defaults could be tried, or passed; try a larger -N, --nx or "
                "--budget"
            )
            return
        check = None if challenger is None else self.check(benchmark, plan, challenger, until)
        if challenger is None or check is None or len(check.tuned) < MIN_PAIRS:
            self.end_early(benchmark, plan, challenger)
            return
        self.keep(benchmark, plan, challenger, check)
        if not over:
            self.note_remaining(benchmark, plan, challenger)

    def end_early(self, benchmark: str, plan: Record, challenger: Candidate | None) -> None:
        """Store the candidate if it is clearly faster in all runs so far, and note how long the other runs need."""
        check = self.evidence(benchmark, plan, challenger) if challenger is not None else None
        if challenger is not None and check is not None:
            if check.verdict == "faster":
                self.keep(benchmark, plan, challenger, check)
            else:
                self.show(benchmark, plan, challenger, check, "")
        self.note_remaining(benchmark, plan, challenger)

    def note_remaining(self, benchmark: str, plan: Record, challenger: Candidate | None) -> None:
        """Note how long the runs need that the budget did not allow, and how to continue."""
        done, remaining = self.progress(benchmark, plan, challenger)
        left_s = remaining * self.trials.seconds_per_run
        self.remaining[benchmark] = {"runs_done": done, "runs_left": remaining, "seconds_left": left_s}
        again = AGAIN if self.trials.has_progress else LONGER
        need = f"the other {remaining} need {'about ' if done else 'at least '}{duration(left_s)}"
        self.note(f"{benchmark}: the budget ended after {done} of {done + remaining} runs; {need}; {again}")

    def evidence(self, benchmark: str, plan: Record, challenger: Candidate) -> WinnerCheck | None:
        """Return the rates of the defaults and of the candidate in the search and in the check so far.

        The result is None if one of them has not run.
        """
        default = self.candidates(plan)[0]
        defaults, tuned = (
            tuple(rate for phase in ("search", "check") for rate in self.trials.rates(benchmark, plan, each, phase))
            for each in (default, challenger)
        )
        return WinnerCheck(defaults, tuned, complete=False) if defaults and tuned else None

    def progress(self, benchmark: str, plan: Record, challenger: Candidate | None) -> tuple[int, int]:
        """Return the number of runs of a search and its check that have been recorded, and the number still missing."""
        candidates = {candidate.key: candidate for candidate in self.candidates(plan)}
        samples = {
            key: self.trials.rates(benchmark, plan, candidate, "search") for key, candidate in candidates.items()
        }
        searched = sum(map(len, samples.values()))
        missing = len(next_turn(list(candidates), samples).batch)
        if missing:  # later rounds have fewer candidates
            missing = max(missing, max_runs(len(candidates)) - searched)
        pairs = 0 if challenger is None else len(self.check_of(benchmark, plan, challenger).tuned)
        return searched + 2 * pairs, missing + 2 * max(0, MIN_PAIRS - pairs)

    def new_plan(self, benchmark: str, seconds: float) -> Record:
        """Plan a search, and record the plan so that a later call continues with the same candidates."""
        search = plan_search(self.plan, benchmark, self.layouts, self.machines, seconds)
        for text in search.notes:
            self.note(text)
        plan = {
            "kind": "plan",
            "key": self.key(benchmark),
            "budget_s": self.plan.budget_s,
            "size": search.size,
            "orders": self.requested_orders(benchmark),
            "libraries": self.requested_libraries(benchmark),
            "candidates": [
                {"ranks": c.layout.ranks, "threads": c.layout.threads, "settings": dict(c.settings)}
                for c in search.candidates
            ],
        }
        self.store.note([plan])
        self.trials.records.append(plan)
        return plan

    def search(self, benchmark: str, plan: Record, until: float) -> tuple[Candidate | None, bool]:
        """Run the search until the time `until`, and return the fastest candidate and whether the search has ended.

        The defaults do not count as a candidate. The candidate is None if no other candidate has passed.
        """
        candidates = {candidate.key: candidate for candidate in self.candidates(plan)}
        defaults = self.defaults(list(candidates.values()))
        while True:
            samples = {
                key: self.trials.rates(benchmark, plan, candidate, "search") for key, candidate in candidates.items()
            }
            turn = next_turn(list(candidates), samples)
            if not turn.batch or time.time() >= until:
                break
            # the defaults of all layouts run first, then the BLAS libraries: a budget that ends early has then compared
            # the layouts, and the libraries that the user has named
            new = [key for key in turn.batch if not samples[key]]
            first = [key for key in new if key in defaults]
            first = first or [key for key in new if "blas" in candidates[key].settings]
            if not self.trials.run(benchmark, plan, [candidates[key] for key in first or turn.batch], "search", until):
                break
        return self.fastest(benchmark, plan), not turn.batch

    def fastest(self, benchmark: str, plan: Record) -> Candidate | None:
        """Return the fastest candidate of the search so far, except the defaults, or None if none has passed."""
        candidates = {candidate.key: candidate for candidate in self.candidates(plan)}
        samples = {key: self.trials.rates(benchmark, plan, each, "search") for key, each in candidates.items()}
        default, alive = next(iter(candidates)), next_turn(list(candidates), samples).alive
        return next((candidates[key] for key in alive if key != default and samples[key]), None)

    def candidates(self, plan: Record) -> list[Candidate]:
        """Return the candidates of a recorded plan whose layouts can run on this machine."""
        layouts = {(layout.ranks, layout.threads): layout for layout in self.layouts}
        recorded = [((each["ranks"], each["threads"]), each["settings"]) for each in plan["candidates"]]
        return [Candidate(layouts[layout], settings) for layout, settings in recorded if layout in layouts]

    @staticmethod
    def defaults(candidates: Sequence[Candidate]) -> set[str]:
        """Return the keys of the defaults of each layout, which come first (see `ordered`)."""
        firsts = dict[RankLayout, str]()
        for candidate in candidates:
            firsts.setdefault(candidate.layout, candidate.key)
        return set(firsts.values())

    def check(self, benchmark: str, plan: Record, challenger: Candidate, until: float) -> WinnerCheck:
        """Run the defaults and the candidate alternately, in at most MAX_PAIRS pairs before the time `until`.

        Return the check with the rates of all pairs that have been recorded.
        """
        default = self.candidates(plan)[0]
        while (done := len(self.check_of(benchmark, plan, challenger).tuned)) < MAX_PAIRS:
            pairs = MIN_PAIRS - done if done < MIN_PAIRS else min(2, MAX_PAIRS - done)
            both = (default, challenger)
            turns = [each for pair in range(done, done + pairs) for each in (both if pair % 2 == 0 else both[::-1])]
            if time.time() >= until or not self.trials.run(benchmark, plan, turns, "check", until):
                break
        return self.check_of(benchmark, plan, challenger)

    def check_of(self, benchmark: str, plan: Record, challenger: Candidate | None = None) -> WinnerCheck:
        """Return the rates of the pairs of runs that have been recorded so far.

        Without `challenger`, the candidate is the one that an earlier call has checked.
        """
        candidates = self.candidates(plan)
        if challenger is None:  # the candidate that an earlier call has checked
            checked = [each for each in candidates[1:] if self.trials.rates(benchmark, plan, each, "check")]
            challenger = checked[-1] if checked else candidates[0]
        rates = [self.trials.rates(benchmark, plan, candidate, "check") for candidate in (candidates[0], challenger)]
        pairs = min(map(len, rates))
        return WinnerCheck(tuple(rates[0][:pairs]), tuple(rates[1][:pairs]))

    def keep(self, benchmark: str, plan: Record, challenger: Candidate, check: WinnerCheck) -> None:
        """Store the candidate or, if the candidate was not taken, the defaults. Print the check."""
        candidate = challenger if check.taken else self.candidates(plan)[0]
        passed = {"kind": "trial", "benchmark": benchmark, "passed": True}
        low = next((r["precision"] for r in reversed(self.trials.records) if has(r, passed)), "")
        order = candidate.settings.get("n")
        winner = self.winner(
            benchmark,
            candidate,
            plan["size"] if order is None else {"n": int(order)},
            library=plan.get("libraries", {}).get(candidate.settings.get("blas"), {}),
            precision=str(low) if benchmark == "hpl-mxp" else "",
            rate_flops=check.medians[1 if check.taken else 0],
            gain=check.gain if check.taken and isfinite(check.gain) else 0.0,  # infinite if the defaults failed
            verdict=check.verdict,
            when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            runs_left=self.progress(benchmark, plan, challenger)[1],
        )
        self.book.add(winner)
        self.store.write_book(self.book)
        self.show(benchmark, plan, challenger, check, stored(winner))

    def show(self, benchmark: str, plan: Record, challenger: Candidate, check: WinnerCheck, kept: str) -> None:
        """Add the check of a benchmark to the result, with the stored settings `kept` if there are any; print it."""
        text = f"{typed(challenger.settings)} on {challenger.layout}"
        tried = {"candidate": dict(challenger.settings), "layout": str(challenger.layout), "candidate_text": text}
        self.checks[benchmark] = {**check.section(), **tried, "size": plan["size"], "stored": kept}
        self.say(f"{benchmark}: {check.verdict}, {rate_text(check.medians[1])} against {rate_text(check.medians[0])}")

    def compared(self) -> dict[str, list[Record]]:
        """Return the rates of the BLAS libraries in the search, per benchmark and layout, with SciPy's BLAS first."""
        tables: dict[str, list[Record]] = {}
        for benchmark in self.plan.benchmarks:
            plan = self.planned(benchmark)
            if plan is None or not self.requested_libraries(benchmark):
                continue
            candidates = self.candidates(plan)
            defaults = self.defaults(candidates)
            tables[benchmark] = [
                {
                    "blas": candidate.settings.get("blas", "scipy"),
                    "layout": str(candidate.layout),
                    "rates_flops": self.trials.rates(benchmark, plan, candidate, "search"),
                }
                for candidate in candidates
                if candidate.key in defaults or "blas" in candidate.settings
            ]
        return tables

    def section(self) -> dict[str, Any]:
        """Return the sections of the JSON result."""
        winners = [winner for winner in self.book.winners.values() if winner.benchmark in self.plan.benchmarks]
        return {
            "curves": [r for r in self.trials.records if r["kind"] == "kernel"],
            "trials": [r for r in self.trials.records if r["kind"] == "trial"],
            "winners": winners,
            "check": self.checks,
            **({"libraries": self.compared()} if self.plan.libraries else {}),
            "remaining": self.remaining,
            "notes": self.notes,
            "elapsed_s": time.time() - self.begin,
        }


def stored(winner: Winner) -> str:
    """Return the stored settings of a winner as command-line flags."""
    layout = {"ranks": str(winner.ranks), "threads": str(winner.threads)}
    return typed({**(layout if winner.any_layout and winner.ranks > 1 else {}), **winner.settings})
