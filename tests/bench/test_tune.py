"""Test the stages, the resumption and the stored settings of tuning, with fake and once with real measurements."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.lu import gemm_probe
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.bench.sparse import smoother_of
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.options import resolve
from mxpeak.perf.simulation.machine_from_measurements import _gemm_curve
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.runtime.tuned import Store, append
from mxpeak.verbs.tune import job as job_module
from mxpeak.verbs.tune import probe as probe_module
from mxpeak.verbs.tune.candidates import (
    Candidate,
    RankLayout,
    largest,
    layouts,
    lu_candidates,
    ordered,
    sparse_candidates,
)
from mxpeak.verbs.tune.groups import LaunchedRanks, Stopped
from mxpeak.verbs.tune.job import TuneJob, line, perform, probe_of, trial_texts
from mxpeak.verbs.tune.operands import near_one
from mxpeak.verbs.tune.page import page
from mxpeak.verbs.tune.plan import TunePlan
from mxpeak.verbs.tune.probe import _usual, probes
from mxpeak.verbs.tune.run import Tuner
from mxpeak.verbs.tune.successive_halving import MIN_PAIRS, max_runs

ONE, TWO = RankLayout(1, 2), RankLayout(2, 1)


class Invented:
    """Ranks whose trials have the rate `rate_of(task)`; they end after `limit` tasks, or stop as if interrupted."""

    def __init__(self, rate_of: Callable[[dict[str, Any]], float], limit: int = 10_000, stops: bool = False):
        self.rate_of, self.remaining, self.stops = rate_of, limit, stops
        self.done: list[dict[str, Any]] = []

    def do(self, job: TuneJob) -> None:
        beside = {"ranks": job.ranks, "threads": job.threads, "device": job.device}
        for task in job.tasks:
            if self.remaining == 0:
                if self.stops:
                    raise Stopped(130)
                return
            self.remaining -= 1
            if task["do"] == "probes":
                record = {"kind": "complete", **beside}
            else:
                rate = self.rate_of({**task, **beside})
                values = {name: value for name, value in task.items() if name != "do"}
                beside_rate = {"passed": rate > 0, "precision": "fp64", "iterations": None}
                record = {"kind": "trial", **beside, **values, "rate_flops": rate, **beside_rate}
            append(Path(job.journal), [record])
            self.done.append(record)


def by_block(task: dict[str, Any]) -> float:
    """NB = 128 is the best of all, two ranks a little better than one."""
    nb = int(task["settings"].get("nb", 192))
    return 1e9 * task["ranks"] ** 0.1 / (1 + abs(nb - 128) / 128)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "tuned", {"cpu_model": "invented"})


def plan(*names: str, layouts: tuple[RankLayout, ...] = (ONE,), **changed: Any) -> TunePlan:
    size = {"n": 2048, "nx": 48}
    return TunePlan(**{"benchmarks": names, "layouts": layouts, "budget_s": 3600.0, "size": size, **changed})


def tuned(store: Store, group: Any, *names: str, **changed: Any) -> dict[str, Any]:
    return Tuner(plan(*(names or ("hpl",)), **changed), store, group, lambda text: None).run()


# --- stages -----------------------------------------------------------------------------------------------------


def test_the_fastest_settings_win_are_checked_and_stored(store: Store) -> None:
    body = tuned(store, Invented(by_block))
    (winner,) = store.book()[0].winners.values()
    assert winner.settings == {"nb": "128"}
    assert winner.verdict == "faster"
    assert winner.size == {"n": 2048}
    check = body["check"]["hpl"]
    assert len(check["defaults"]["rates_flops"]) == len(check["tuned"]["rates_flops"]) >= MIN_PAIRS
    assert check["gain"] == pytest.approx(
        by_block({"settings": {"nb": "128"}, "ranks": 1}) / by_block({"settings": {}, "ranks": 1}) - 1
    )


def test_a_check_alternates_new_runs_of_both_settings(store: Store) -> None:
    group = Invented(by_block)
    tuned(store, group)
    checked = [one["settings"].get("nb", "") for one in group.done if one.get("phase") == "check"]
    assert checked == ["", "128", "128", "", "", "128", "128", "", "", "128", "128", "", "", "128"]
    phases = [one.get("phase") for one in group.done]
    assert phases.index("check") > max(k for k, phase in enumerate(phases) if phase == "search")


def test_candidates_that_are_slower_leave_the_defaults_as_the_winner(store: Store) -> None:
    body = tuned(store, Invented(lambda task: 1e9 if not task["settings"] else 5e8))
    (winner,) = store.book()[0].winners.values()
    assert winner.settings == {}
    assert body["check"]["hpl"]["verdict"] == "slower"
    assert body["check"]["hpl"]["stored"] == "defaults"


def test_settings_that_win_the_search_and_lose_the_check_are_not_stored(store: Store) -> None:
    def lucky(task: dict[str, Any]) -> float:
        return 2e9 if task["phase"] == "search" and task["settings"] else 1e9 if not task["settings"] else 9e8

    tuned(store, Invented(lucky))
    assert [one.settings for one in store.book()[0].winners.values()] == [{}]


def test_settings_that_fail_their_validation_never_win(store: Store) -> None:
    def fails(task: dict[str, Any]) -> float:
        return 0.0 if task["settings"].get("nb") == "128" else by_block(task)

    tuned(store, Invented(fails))
    (winner,) = store.book()[0].winners.values()
    assert winner.settings.get("nb") in ("96", "160")


def test_defaults_that_fail_their_validation_have_no_finite_gain_to_store(store: Store) -> None:
    body = tuned(store, Invented(lambda task: by_block(task) if task["settings"] else 0.0))
    (winner,) = store.book()[0].winners.values()
    assert (winner.settings, winner.verdict, winner.gain) == ({"nb": "128"}, "faster", 0.0)
    assert body["check"]["hpl"]["gain"] is None


def test_layouts_are_searched_together_and_checked_against_the_default_one(store: Store) -> None:
    group = Invented(lambda task: by_block(task) * task["ranks"])
    tuned(store, group, layouts=(ONE, TWO))
    (winner,) = store.book()[0].winners.values()
    assert (winner.ranks, winner.any_layout) == (2, True)
    checked = [one["ranks"] for one in group.done if one.get("phase") == "check"]
    assert checked == [1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2]


@pytest.mark.parametrize("name", ["hpl", "hpl-mxp", "hpg-mxp", "hpcg"])
def test_every_benchmark_can_be_tuned(store: Store, name: str) -> None:
    tuned(store, Invented(lambda task: 1e9 + 1e6 * len(str(task["settings"]))), name)
    (winner,) = store.book()[0].winners.values()
    assert winner.benchmark == name
    assert winner.settings
    options = BENCHMARKS[name].config
    assert resolve(options, dict(winner.settings), {}, {}), "a run can be told so"


# --- stopping and resuming --------------------------------------------------------------------------------------


def test_a_stopped_search_continues_to_the_same_winner(tmp_path: Path) -> None:
    whole = Store(tmp_path / "whole", {})
    group = Invented(by_block)
    tuned(whole, group)
    for done in range(0, len(group.done), 3):
        store = Store(tmp_path / str(done), {})
        first = Invented(by_block, limit=done, stops=True)
        with pytest.raises(Stopped):
            tuned(store, first)
        second = Invented(by_block)
        tuned(store, second)
        assert [one.settings for one in store.book()[0].winners.values()] == [{"nb": "128"}]
        for phase, twice in (("search", 0), ("check", 1)):  # an interrupted pair runs again
            wanted, counted = (
                sum(one.get("phase") == phase for one in done_by)
                for done_by in (group.done, [*first.done, *second.done])
            )
            assert wanted <= counted <= wanted + twice, phase


def test_a_tuned_size_is_not_tuned_again_with_a_similar_budget(store: Store) -> None:
    tuned(store, Invented(by_block))
    again = Invented(by_block)
    body = tuned(store, again)
    assert again.done == []
    assert "hpl is already tuned" in body["notes"][-1]
    assert body["check"]["hpl"]["verdict"] == "faster"


def test_another_size_is_another_search(store: Store) -> None:
    tuned(store, Invented(by_block))
    again = Invented(by_block)
    tuned(store, again, size={"n": 4096})
    assert again.done
    assert [one.size for one in store.book()[0].winners.values()] == [{"n": 4096}]


def test_a_longer_budget_looks_for_a_larger_size(store: Store) -> None:
    tuned(store, Invented(by_block))
    tuner = Tuner(plan("hpl", budget_s=2 * 3600.0), store, Invented(by_block), lambda text: None)
    assert tuner.planned("hpl") is None
    tuner = Tuner(plan("hpl", budget_s=1.9 * 3600.0), store, Invented(by_block), lambda text: None)
    assert tuner.planned("hpl") is not None


def test_a_size_at_which_nothing_else_can_be_tried_says_so(store: Store) -> None:
    body = tuned(store, Invented(by_block), size={"n": 64})
    assert store.book()[0].winners == {}
    assert "larger -N" in body["notes"][-1]


def two_layouts() -> Callable[[dict[str, Any]], float]:
    """Two ranks are 2.5 times as fast as one; each second run is 2 % faster."""
    count = itertools.count()
    return lambda task: 1e9 * (2.5 if task["ranks"] == 2 else 1.0) * (1.0 + 0.02 * (next(count) % 2))


class OnePair(Invented):
    """Ranks that end after the first pair of runs in a check."""

    def do(self, job: TuneJob) -> None:
        checked = sum(each.get("phase") == "check" for each in self.done)
        if job.tasks[0].get("phase") != "check" or checked < 2:
            super().do(job)


def test_a_budget_that_ends_in_the_check_stores_a_clear_winner(store: Store) -> None:
    body = tuned(store, OnePair(two_layouts()), layouts=(ONE, TWO))
    (winner,) = store.book()[0].winners.values()
    assert (winner.ranks, winner.verdict) == (2, "faster")
    check = body["check"]["hpl"]
    assert check["complete"] is False
    assert len(check["defaults"]["rates_flops"]) >= 2
    assert check["gain"] == pytest.approx(1.5, rel=0.05)
    left = body["remaining"]["hpl"]
    assert left["runs_left"] == winner.runs_left == 2 * (MIN_PAIRS - 1)
    assert f"the other {left['runs_left']} need about" in body["notes"][-1]
    later = tuned(store, Invented(two_layouts()), layouts=(ONE, TWO))  # continues and decides with all pairs
    assert later["check"]["hpl"]["complete"] is True
    assert later["remaining"] == {}


def test_a_budget_that_ends_in_the_search_stores_nothing_without_a_second_run(store: Store) -> None:
    body = tuned(store, Invented(by_block, limit=4))
    assert store.book()[0].winners == {}
    left = body["remaining"]["hpl"]
    assert left["runs_done"] + left["runs_left"] >= max_runs(4) + 2 * MIN_PAIRS
    assert f"the budget ended after {left['runs_done']} of " in body["notes"][-1]
    assert body["notes"][-1].endswith("repeat the command to continue")


class CutShort(Invented):
    """Ranks whose search ends after the first round; a check runs as long as it needs."""

    def do(self, job: TuneJob) -> None:
        job = dataclasses.replace(job, tasks=[task for task in job.tasks if self.allows(task)])
        super().do(job)

    def allows(self, task: dict[str, Any]) -> bool:
        """Return whether the settings of a search have not run yet."""
        ran = [each["settings"] for each in self.done if each.get("phase") == "search"]
        return task.get("phase") != "search" or task["settings"] not in ran


def test_a_search_that_a_budget_cut_short_is_checked_and_continued_by_the_next_call(store: Store) -> None:
    body = tuned(store, CutShort(by_block))
    (winner,) = store.book()[0].winners.values()
    assert winner.verdict == "faster"
    assert len(body["check"]["hpl"]["tuned"]["rates_flops"]) >= MIN_PAIRS
    left = body["remaining"]["hpl"]["runs_left"]
    assert winner.runs_left == left > 0
    assert f"the other {left} need about" in body["notes"][-1]
    second = Invented(by_block)
    body = tuned(store, second)
    assert any(each.get("phase") == "search" for each in second.done)
    (winner,) = store.book()[0].winners.values()
    assert (winner.settings, winner.runs_left, body["remaining"]) == ({"nb": "128"}, 0, {})
    third = Invented(by_block)
    assert "already tuned" in tuned(store, third)["notes"][-1]
    assert third.done == []


def test_a_budget_in_which_no_run_ends_is_too_short(store: Store) -> None:
    tuned(store, Invented(by_block, limit=4))
    body = tuned(store, Invented(by_block, limit=1))  # only a warm-up
    assert body["notes"][-1].endswith("no run ended within the budget, so use a longer --budget")


def test_the_defaults_of_all_layouts_run_before_the_other_candidates(store: Store) -> None:
    group = Invented(by_block)
    tuned(store, group, layouts=(ONE, TWO))
    searched = [each for each in group.done if each.get("phase") == "search"]
    assert [(each["ranks"], each["settings"]) for each in searched[:2]] == [(1, {}), (2, {})]


def test_a_benchmark_for_which_no_time_is_left_waits_for_the_next_call(store: Store) -> None:
    def late(task: dict[str, Any]) -> float:
        tuner.begin -= 3600.0  # the whole budget is over
        return by_block(task)

    tuner = Tuner(plan("hpl", "hpcg"), store, Invented(late), lambda text: None)
    body = tuner.run()
    assert "hpcg was not tuned, because " in body["notes"][-1]
    assert body["notes"][-1].endswith("; run mxpeak tune again")
    assert all(one["kind"] != "plan" or "hpcg" not in one["key"] for one in store.journal()[0])


def test_a_budget_that_ends_during_the_measurements_is_too_short(store: Store) -> None:
    """The same budget would end during the measurements again."""
    tuner = Tuner(plan("hpl", "hpcg"), store, Invented(by_block), lambda text: None)
    tuner.begin -= 3600.0
    notes = [note for note in tuner.run()["notes"] if "not tuned" in note]
    assert [note.split(",")[0] for note in notes] == ["hpl was not tuned", "hpcg was not tuned"]
    budget = f"{tuner.plan.budget_s:g}s"
    assert all(note.endswith(f"only 0 s of the budget are left; use a larger --budget than {budget}") for note in notes)


def test_a_full_disk_leaves_the_store_as_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *target: Path) -> None:
        raise OSError(28, "No space left on device")

    store.write_book(store.book()[0])
    before = store.book_file.read_text()
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ResourceError, match=r"cannot write .*: No space left on device; set MXPEAK_CACHE_DIR to"):
        store.write_book(store.book()[0])
    assert [file.read_text() for file in store.folder.iterdir()] == [before]


def test_a_corrupted_store_is_reported_and_tuned_again(store: Store) -> None:
    store.folder.mkdir()
    store.book_file.write_text("{")
    store.journal_file.write_text('{"kind": "trial"\n')
    body = tuned(store, Invented(by_block))
    assert any("not JSON" in text for text in body["notes"])
    assert any("not measurements" in text for text in body["notes"])
    assert len(store.book()[0].winners) == 1


def by_order(task: dict[str, Any]) -> float:
    """N = 1536 is the best of the orders, with any NB."""
    n = int(task["settings"].get("n", task["size"]["n"]))
    return by_block(task) / (1 + abs(n - 1536) / 1536)


def test_several_orders_are_searched_and_the_fastest_is_stored(store: Store) -> None:
    orders, size = (2048, 1536, 1024), {"n": 2048}
    body = tuned(store, Invented(by_order), orders=orders, size=size)
    (winner,) = store.book()[0].winners.values()
    assert winner.size == {"n": 1536}
    assert winner.settings["n"] == "1536"
    assert {r["settings"]["n"] for r in body["trials"] if r["phase"] == "search"} == set(map(str, orders))
    whole = {"config": {"benchmarks": ["hpl"]}, "store": "", "machine": {"tables": {}}, **body}
    assert "hpl by local size" in (shown := page(whole))
    assert all(f"1x2, N = {n}" in shown for n in (2048, 1536)), "the rates over NB have one line per order"
    assert resolve(BENCHMARKS["hpl"].config, dict(winner.settings), {}, {})["n"].value == (1536,)
    tuner = Tuner(plan("hpl", size=size), store, Invented(by_order), lambda text: None)
    assert tuner.planned("hpl") is None, "a search at one order is another search"
    again = Tuner(plan("hpl", size=size, orders=orders), store, Invented(by_order), lambda text: None)
    assert again.planned("hpl") is not None


LIBRARIES = {
    "openblas": {"file": "/lib/libopenblas.so", "bytes": 8, "modified_ns": 1},
    "blis": {"file": "/lib/libblis.so", "bytes": 9, "modified_ns": 2},
}


def by_library(task: dict[str, Any]) -> float:
    """BLIS is the best library, and better than any NB."""
    return by_block(task) * {"blis": 3.0, "openblas": 0.5}.get(task["settings"].get("blas", ""), 1.0)


def test_the_fastest_library_is_checked_against_scipy_and_stored_with_its_file(store: Store) -> None:
    group = Invented(by_library)
    body = tuned(store, group, libraries=LIBRARIES)
    (winner,) = store.book()[0].winners.values()
    assert (winner.settings, winner.library) == ({"blas": "blis"}, LIBRARIES["blis"])
    searched = [each["settings"] for each in group.done if each.get("phase") == "search"]
    assert searched[:3] == [{}, {"blas": "openblas"}, {"blas": "blis"}]
    assert {each["settings"].get("blas") for each in group.done if each.get("phase") == "check"} == {None, "blis"}
    assert [each["blas"] for each in body["libraries"]["hpl"]] == ["scipy", "openblas", "blis"]
    rates = [each["rates_flops"] for each in body["libraries"]["hpl"]]
    assert rates[1][0] < rates[0][0] < rates[2][0]
    whole = {"config": {"benchmarks": ["hpl"]}, "store": "", "machine": {"tables": {}}, **body}
    assert "BLAS libraries of hpl with the default NB" in page(whole)
    assert resolve(BENCHMARKS["hpl"].config, dict(winner.settings), {}, {})["blas"].value == "blis"
    again = Invented(by_library)
    assert "hpl is already tuned" in tuned(store, again, libraries=LIBRARIES)["notes"][-1]
    assert again.done == []


def test_libraries_run_on_all_layouts_before_other_candidates(store: Store) -> None:
    group = Invented(by_library)
    tuned(store, group, layouts=(ONE, TWO), libraries=LIBRARIES)
    searched = [(each["ranks"], each["settings"]) for each in group.done if each.get("phase") == "search"]
    named = [(ranks, {"blas": name}) for ranks in (1, 2) for name in LIBRARIES]
    assert searched[:6] == [(1, {}), (2, {}), *named]
    assert all("blas" not in settings for _, settings in searched[6:10])


def test_a_library_that_fails_never_wins(store: Store) -> None:
    body = tuned(
        store, Invented(lambda task: 0.0 if "blas" in task["settings"] else by_block(task)), libraries=LIBRARIES
    )
    (winner,) = store.book()[0].winners.values()
    assert (winner.settings, winner.library) == ({"nb": "128"}, {})
    whole = {"config": {"benchmarks": ["hpl"]}, "store": "", "machine": {"tables": {}}, **body}
    assert "failed" in page(whole)


def test_rates_of_another_file_of_a_library_are_not_reused(store: Store) -> None:
    tuned(store, Invented(by_library), libraries=LIBRARIES)
    newer = {**LIBRARIES, "blis": {**LIBRARIES["blis"], "modified_ns": 3}}
    group = Invented(by_block)
    tuned(store, group, libraries=newer)
    assert {each["settings"]["blas"] for each in group.done if "blas" in each.get("settings", {})} == {"blis"}
    (winner,) = store.book()[0].winners.values()
    assert winner.settings == {"nb": "128"}


def test_without_libraries_none_is_searched_or_reported(store: Store) -> None:
    tuned(store, Invented(by_library), libraries=LIBRARIES)
    group = Invented(by_library)
    body = tuned(store, group)
    assert "libraries" not in body
    assert all("blas" not in each["settings"] for each in group.done)
    assert [each.settings for each in store.book()[0].winners.values()] == [{"nb": "128"}]


def test_libraries_are_for_lu_benchmarks_and_each_layout(store: Store) -> None:
    group = Invented(by_library)
    tuned(store, group, "hpl", "hpcg", layouts=(ONE, TWO), libraries=LIBRARIES)
    tried = {(each["benchmark"], each["ranks"]) for each in group.done if "blas" in each.get("settings", {})}
    assert tried == {("hpl", 1), ("hpl", 2)}


def test_libraries_are_tried_although_the_list_is_limited() -> None:
    candidates = [Candidate(ONE, {}), *(Candidate(ONE, {"nb": str(k)}) for k in range(1, 9)), Candidate(TWO, {})]
    chosen = ordered(candidates, lambda one: 1.0, 3, ["openblas", "blis"])
    assert [(each.layout, dict(each.settings)) for each in chosen] == [
        (ONE, {}), (TWO, {}), (ONE, {"blas": "openblas"}), (ONE, {"blas": "blis"}), (TWO, {"blas": "openblas"}),
        (TWO, {"blas": "blis"}), (ONE, {"nb": "1"}),
    ]  # fmt: skip
    orders = [Candidate(ONE, {"n": n}) for n in ("96", "64")]
    chosen = ordered(orders, lambda one: 1.0, 3, ["blis"])
    assert [dict(each.settings) for each in chosen] == [{"n": "96"}, {"n": "64"}, {"n": "96", "blas": "blis"}]


# --- candidates -------------------------------------------------------------------------------------------------


def test_the_defaults_come_first_and_say_nothing() -> None:
    for candidates in (
        lu_candidates("hpl", TWO, 2048, 192, on_gpu=False),
        sparse_candidates("hpcg", TWO, "official", 104, on_gpu=False, boxes=True),
    ):
        assert candidates[0].settings == {}
        assert all(one.settings for one in candidates[1:])
        assert len({one.key for one in candidates}) == len(candidates)


def test_official_settings_compete_with_official_ones() -> None:
    storages = {
        mode: {
            one.settings.get("storage") for one in sparse_candidates("hpcg", ONE, mode, 48, on_gpu=False, boxes=False)
        }
        for mode in ("official", "explore")
    }
    assert "packed" not in storages["official"]
    assert "packed" in storages["explore"]


@pytest.mark.parametrize("name", ["hpcg", "hpg-mxp"])
@pytest.mark.parametrize("mode", ["official", "explore"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_defaults_by_another_name_do_not_compete(name: str, mode: str, on_gpu: bool) -> None:
    config = BENCHMARKS[name].config(mode=mode, kernels="torch" if on_gpu else "host")
    storage = import_module(f"mxpeak.bench.{name.replace('-', '_')}.rules").storages(config)[0]
    default = {"storage": storage, "smoother": smoother_of(config, storage)}
    found = [dict(one.settings) for one in sparse_candidates(name, ONE, mode, 48, on_gpu=on_gpu, boxes=False)]
    assert default not in found
    assert {**default, "smoother": "coloured" if default["smoother"] == "natural" else "natural"} in found


def test_one_rank_has_no_grid_broadcast_or_split_to_search() -> None:
    assert {name for one in lu_candidates("hpl", ONE, 2048, 192, on_gpu=False) for name in one.settings} == {"nb"}
    tall = {name for one in lu_candidates("hpl", TWO, 2048, 192, on_gpu=False) for name in one.settings}
    assert tall == {"nb", "grid", "bcast", "split"}


def test_several_nodes_search_their_part_of_the_grid() -> None:
    found = lu_candidates("hpl-mxp", RankLayout(16, 1, nodes=4), 8192, 320, on_gpu=False)
    assert {one.settings["node_grid"] for one in found if "node_grid" in one.settings} >= {"2x2", "1x4"}


def test_a_block_is_not_tried_where_ranks_would_have_too_few_of_them() -> None:
    on_gpu = lu_candidates("hpl-mxp", ONE, 16384, 2048, on_gpu=True)  # a run of this order has NB = 1024 by itself
    assert on_gpu[0].settings == {"nb": "2048"}
    assert len({one.settings["nb"] for one in on_gpu}) == len(on_gpu)
    blocks = {int(one.settings["nb"]) for one in lu_candidates("hpl", ONE, 512, 192, on_gpu=False) if one.settings}
    assert max(blocks) <= 128


def test_the_model_orders_and_the_defaults_of_each_layout_stay() -> None:
    candidates = [Candidate(ONE, {}), *(Candidate(ONE, {"nb": str(k)}) for k in range(1, 9)), Candidate(TWO, {})]
    chosen = ordered(candidates, lambda one: -float(one.settings["nb"]), 4)
    assert [dict(one.settings) for one in chosen] == [{}, {}, {"nb": "8"}, {"nb": "7"}]
    assert [dict(one.settings) for one in ordered(candidates, lambda one: None, 3)] == [{}, {}, {"nb": "1"}]


def test_the_default_block_of_a_gpu_stays_the_first_candidate() -> None:
    found = lu_candidates("hpl-mxp", ONE, 65536, 1024, on_gpu=True)
    assert {int(one.settings["nb"]) for one in found} >= {1024, 3072, 4096}
    chosen = ordered(found, lambda one: 1.0 / float(one.settings["nb"]), 4)  # the model prefers the largest block
    assert [dict(one.settings) for one in chosen] == [{"nb": nb} for nb in ("1024", "4096", "3072", "2048")]


def test_the_default_of_each_order_stays() -> None:
    found = [Candidate(ONE, {"n": n, **nb}) for n in ("96", "64") for nb in ({}, {"nb": "8"}, {"nb": "16"})]
    assert [dict(one.settings) for one in ordered(found, lambda one: 1.0, 3)] == [
        {"n": "96"}, {"n": "64"}, {"n": "96", "nb": "8"},
    ]  # fmt: skip


def test_boxes_have_about_as_many_points_and_keep_the_rules() -> None:
    boxes = [
        one.settings
        for one in sparse_candidates("hpg-mxp", ONE, "official", 104, on_gpu=False, boxes=True)
        if "nx" in one.settings
    ]
    assert boxes
    for box in boxes:
        assert all(int(box[name]) % 8 == 0 for name in ("nx", "ny", "nz"))
        assert int(box["nx"]) * int(box["ny"]) * int(box["nz"]) == pytest.approx(104**3, rel=0.15)


def test_cores_are_shared_in_a_few_ways_the_default_first() -> None:
    assert layouts(2, several=True) == [ONE, TWO]
    assert layouts(1, several=True) == [RankLayout(1, 1)]
    assert layouts(64, several=False) == [RankLayout(1, 64)]
    many = layouts(64, several=True)
    assert many[0] == RankLayout(1, 64)
    assert RankLayout(64, 1) in many
    assert len(many) <= 4


def test_the_largest_size_that_takes_no_longer_is_taken() -> None:
    assert largest((1, 2, 4, 8), lambda n: float(n), 5.0) == 4
    assert largest((1, 2, 4, 8), lambda n: float(n), 0.5) == 1


# --- real ranks -------------------------------------------------------------------------------------------------


class Here:
    """A single rank: this process."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def do(self, job: TuneJob) -> None:
        perform(job, Solo(), self.notes.append)


def test_ranks_of_unequal_nodes_repeat_joint_kernels_equally_often() -> None:
    """The ranks of one node share cores, and those of another do not."""

    def calls(crowded: tuple[bool, bool]) -> list[int]:
        def body(comm: Any) -> int:
            done: list[int] = []

            def slowest(work: Callable[[], object]) -> float:
                work()
                return 0.01

            placement = SimpleNamespace(crowded=crowded[comm.rank])
            bench: Any = SimpleNamespace(
                comm=comm, kernels=SimpleNamespace(xp=np), placement=placement, slowest=slowest
            )
            _usual(bench, lambda: done.append(1))
            return len(done)

        return run_ranks(2, body)

    (alone, _), shared = calls((False, False)), calls((True, False))
    assert shared[0] == shared[1] > alone


@pytest.mark.parametrize("name", ["hpl", "hpl-mxp", "hpcg"])
def test_kernels_and_a_benchmark_are_really_measured(
    store: Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "SECONDS", 0.0)  # three repetitions of each kernel
    group = Here()
    body = tuned(store, group, name, layouts=(RankLayout(1, 1),), size={"n": 256, "nx": 16}, scale=32)
    assert {r["name"] for r in body["curves"]} >= {"gemm", "trsm", "factor", "fact", "ld", "read", "sweep", "solve"}
    assert all(r["seconds"] > 0 for r in body["curves"])
    assert all(one["passed"] for one in body["trials"]), [one.get("failed") for one in body["trials"]]
    assert [one.benchmark for one in body["winners"]] == [name]
    assert body["check"][name]["verdict"] in ("faster", "equal", "slower")
    assert find_machine(str(store.table_file(1, 1))).fact, "the machine is there for simulate"
    assert all(len(text) > 10 for text in group.notes)
    whole = {"config": {"benchmarks": [name]}, "store": "", "machine": {"tables": {}}, **body}
    shown = page(whole)
    low = next(iter({r["precision"] for r in body["curves"] if r["name"] == "ld"} - {"fp64", "fp32"}), "fp32")
    for title in ("GEMM in fp64 over (m, n, k)", f"leading dimension, GEMM in {low}", "TRSM in fp32", "GETRF"):
        assert f"<figcaption>{title}</figcaption>" in shown


def test_a_record_of_a_kernel_names_its_probe() -> None:
    for probe in probes(2, ["bf16"], on_gpu=False):
        measured = {"kind": "kernel", "ranks": 2, "threads": 1, "device": "cpu", **probe, "seconds": 1.0}
        if probe["name"] == "rows":
            measured["bytes"] = 8.0
        assert probe_of(measured) == probe
        assert str(probe["name"]) in line(measured)


@pytest.mark.parametrize(("P", "Q"), [(1, 2), (2, 2), (3, 1)])
def test_ranks_of_a_probe_solve_the_matrix_of_one_rank(P: int, Q: int) -> None:
    """Compare the matrix of all ranks, which has a unit diagonal and is strictly dominant, with that of one rank."""
    n, nb = 53, 8

    def part(comm: Any) -> tuple[Any, list[int], list[int]]:
        grid = make_grid(ProcessGrid(P, Q), comm)
        assert grid is not None
        A = dist_matrix(grid, n, n, nb, HostKernels(1, poison=True), "fp32")
        near_one(HostKernels(1), A.local, A.rows, A.cols)
        return A.local, *([lines.to_global(i) for i in range(lines.local_size)] for lines in (A.rows, A.cols))

    actual = np.full((n, n), np.nan)
    for local, rows, cols in run_ranks(P * Q, part):
        actual[np.ix_(rows, cols)] = local
    whole = BlockCyclic(n, 64, 0, 1)
    expected = near_one(HostKernels(1), HostKernels(1).matrix(n, n, "fp32"), whole, whole)
    assert actual.tolist() == expected.tolist()
    assert (np.diag(actual) == 1.0).all()
    assert np.abs(actual - np.eye(n)).sum(axis=1).max() < 0.5


@pytest.mark.parametrize("on_gpu", [False, True])
def test_probes_are_all_different_and_cover_the_map(on_gpu: bool) -> None:
    found = [str(probe) for probe in probes(2, ["bf16"], on_gpu=on_gpu)]
    assert len(found) == len(set(found))
    for name in ("fp64", "fp32", "bf16"):
        of = [probe for probe in probes(2, ["bf16"], on_gpu=on_gpu) if probe.get("precision") == name]
        shapes = {(p["m"], p["n"], p["k"]) for p in of if p["name"] == "gemm"}
        edges, inner = ((1024, 4096, 8192), (256, 1024, 3072)) if on_gpu else ((256, 1024, 3072), (64, 256, 768))
        assert shapes >= set(itertools.product(edges, edges, inner))
        assert max(k for _, _, k in shapes) == (4096 if on_gpu else 768)
        strides = {(p["m"], p["ld"]) for p in of if p["name"] == "ld"}
        assert len({m for m, _ in strides}) == 3
        assert len({ld for _, ld in strides}) == 5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_product_with_another_leading_dimension_is_the_same_product(precision: str) -> None:
    kernels, (m, n, k, ld) = HostKernels(1), (37, 23, 16, 41)
    plain, padded = gemm_probe(kernels, m, n, k, precision), gemm_probe(kernels, m, n, k, precision, ld)
    plain()
    padded()
    assert padded.C.strides == (4 * ld, 4)
    assert padded.C.tolist() == plain.C.tolist()
    assert np.abs(plain.C).max() > 0.0


def test_products_that_are_not_square_do_not_change_the_machine_table() -> None:
    square = [{"name": "gemm", "precision": "fp64", "m": m, "n": m, "k": 256, "rate": 1e10 * m} for m in (1, 2)]
    other = {"name": "gemm", "precision": "fp64", "m": 9, "n": 1, "k": 256, "rate": 1e12}
    assert _gemm_curve([*square, other], "fp64", 0.0) == _gemm_curve(square, "fp64", 0.0) == [[256, 2e10]]


def test_the_time_to_load_kernels_does_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first use that compiles for longer than the budget leaves the budget to the measurements."""
    clock = [1000.0]
    monkeypatch.setattr(job_module, "time", SimpleNamespace(time=lambda: clock[0]))

    def slow(*arguments: Any) -> Any:
        clock[0] += 100.0
        yield {"kind": "loaded", "ranks": 1, "threads": 1, "device": "cpu", "seconds": 100.0}
        for m in range(9):
            clock[0] += 2.0
            yield {"kind": "kernel", "name": "read", "ranks": 1, "threads": 1, "device": "cpu", "m": m, "seconds": 2.0}

    monkeypatch.setattr(job_module, "_probes", slow)
    job = TuneJob(
        ranks=1, threads=1, device="cpu", kernels="host", tasks=[{"do": "probes"}], journal=str(store.journal_file),
        until_unix=1010.0,
    )  # fmt: skip
    notes: list[str] = []
    perform(job, Solo(), notes.append)
    assert [r["kind"] for r in store.journal()[0]] == ["loaded", *["kernel"] * 5]
    assert "kernels loaded in 100 s" in notes[0]
    store.clear()
    perform(dataclasses.replace(job, until_unix=clock[0] - 1.0), Solo(), notes.append)  # too late to measure
    assert [r["kind"] for r in store.journal()[0]] == ["loaded"]


def test_a_page_shows_only_measured_values() -> None:
    curves = [
        {"ranks": 1, "threads": 2, **probe, "seconds": 1.0, "rate": 1e9 * (1 + at)}
        for at, probe in enumerate(probes(1, ["bf16"], on_gpu=False))
    ]
    trials = [
        {"benchmark": "hpl", "phase": "search", "passed": passed, "ranks": 1, "threads": 2, "size": {"n": 2048},
         "settings": settings, "rate_flops": rate}
        for settings, rate, passed in (
            ({"nb": "64"}, 1e9, True), ({"nb": "128"}, 2e9, True), ({"nb": "256"}, 9e9, False), ({}, 1e9, True),
        )
    ]  # fmt: skip
    body = {
        "config": {"benchmarks": ["hpl"]}, "curves": curves, "trials": trials, "winners": [], "check": {}, "notes": [],
        "machine": {"tables": {}}, "store": "",
    }  # fmt: skip
    shown = page(body)
    of = next(r for r in curves if (r["name"], r.get("m"), r.get("n"), r.get("k")) == ("gemm", 256, 3072, 768))
    assert f"m x n 256x3072, k 768: {of['rate'] / 1e9:.3g}" in shown
    for name in ("fp64", "fp32", "bf16"):
        assert f"leading dimension, GEMM in {name}" in shown
    assert "hpl by block size" in shown
    assert "hpl by local size" not in shown  # all trials have one order
    assert "hpl by block size" not in page({**body, "trials": []})
    assert "<figure" not in page({**body, "trials": [], "curves": []})


def test_the_lines_of_a_page_run_from_small_to_large_and_have_several_points() -> None:
    fp64 = {"ranks": 1, "threads": 2, "precision": "fp64"}
    curves = [
        *({**fp64, "name": "factor", "k": k, "seconds": 1.0, "rate": 1e9 * k} for k in (256, 64, 512)),
        *({**fp64, "name": "gemm", "m": m, "n": m, "k": 256, "seconds": 1.0, "rate": 1e9 * m} for m in (512, 2048)),
        {**fp64, "name": "gemm", "m": 2048, "n": 2048, "k": 192, "seconds": 1.0, "rate": 1e9},
    ]
    empty = {"trials": [], "winners": [], "check": {}, "notes": [], "machine": {"tables": {}}, "store": ""}
    shown = page({"config": {"benchmarks": ["hpl"]}, "curves": curves, **empty})
    (blocks,) = re.findall(r'aria-label="GETRF".*?<polyline[^>]* points="([^"]*)"', shown)
    places = [float(point.split(",")[0]) for point in blocks.split()]
    assert len(places) == 3
    assert places == sorted(places)
    assert "NB = 256" in shown
    assert "NB = 192" not in shown


def test_a_trial_that_cannot_be_run_has_no_rate(store: Store) -> None:
    task = {
        "do": "trial",
        "benchmark": "hpl",
        "mode": "official",
        "size": {"n": 64},
        "settings": {"grid": "3x5"},
        "phase": "search",
    }
    job = TuneJob(
        ranks=1, threads=1, device="cpu", kernels="auto", tasks=[task], journal=str(store.journal_file), until_unix=4e9
    )
    Here().do(job)
    (record,), _ = store.journal()
    assert record["rate_flops"] == 0.0
    assert "3*5 = 15 ranks" in record["failed"]


def test_a_trial_uses_only_flags_of_its_benchmark() -> None:
    for name, size in (("hpl", {"n": 64}), ("hpl-mxp", {"n": 64}), ("hpg-mxp", {"nx": 16}), ("hpcg", {"nx": 16})):
        job = TuneJob(ranks=1, threads=1, device="cpu", kernels="auto", tasks=[], journal="", until_unix=0.0)
        task = {"mode": "official", "size": size, "settings": {}}
        config = BENCHMARKS[name].config
        settings = resolve(config, trial_texts(BENCHMARKS[name], task, job), {}, {})
        assert settings["threads"].value == 1


def test_a_journal_that_cannot_be_written_ends_the_job_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invented(job: TuneJob, task: dict[str, Any], comm: Any) -> Iterator[dict[str, Any]]:
        yield {"kind": "complete", "ranks": 2, "threads": 1}

    monkeypatch.setattr(job_module, "_trial", invented)
    tasks, until_unix = [{"do": "trial"}] * 2, time.time() + 600.0
    of_two: dict[str, Any] = {"ranks": 2, "threads": 1, "device": "cpu", "kernels": "auto"}
    job = TuneJob(**of_two, tasks=tasks, journal=str(tmp_path), until_unix=until_unix)

    def body(comm: Any) -> str:
        group = LaunchedRanks(comm, lambda text: None)
        if comm.rank:
            group.serve()
            return "dismissed"
        with pytest.raises(UsageError, match=r"mxpeak cannot write .*: Is a directory"):
            group.do(job)
        group.dismiss()
        return "told"

    assert run_ranks(2, body) == ["told", "dismissed"]


def test_no_task_is_begun_after_its_time(store: Store) -> None:
    job = TuneJob(
        ranks=1,
        threads=1,
        device="cpu",
        kernels="auto",
        tasks=[
            {
                "do": "trial",
                "benchmark": "hpl",
                "mode": "official",
                "size": {"n": 64},
                "settings": {},
                "phase": "search",
            }
        ],
        journal=str(store.journal_file),
        until_unix=0.0,
    )
    Here().do(job)
    assert store.journal() == ([], "")
