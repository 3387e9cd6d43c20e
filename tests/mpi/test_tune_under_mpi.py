"""Test a job of `mxpeak tune` on MPI ranks: measured kernels and messages, a trial run, and one journal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from mxpeak.perf.tuned import read_journal
from mxpeak.runtime import tuned
from mxpeak.verbs.tune.job import TuneJob
from mxpeak.verbs.tune.probe import probes
from tests.support.ranks import StandingRanks, mpi_rank, needs_mpi

pytestmark = needs_mpi


def test_two_ranks_do_a_job(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    wanted = probes(2, [], on_gpu=False, scale=32)
    others = [record for record in wanted if record["name"] not in ("pingpong", "bcast", "read", "pair", "turn")]
    trial = {
        "do": "trial",
        "benchmark": "hpl",
        "mode": "official",
        "size": {"n": 100},
        "phase": "search",
        "settings": {"nb": "16", "grid": "2x1", "split": "0.5"},
    }
    job = TuneJob(
        ranks=2,
        threads=1,
        device="cpu",
        kernels="auto",
        tasks=[{"do": "probes", "known": others, "scale": 32}, trial],
        journal=str(tmp_path / "journal.jsonl"),
        until_unix=4e9,
    )
    (tmp_path / "job.json").write_text(json.dumps(asdict(job)))
    ended = standing[2].run({"job": ["tune", "--job", str(tmp_path / "job.json")]}, tmp_path)["job"]
    assert ended.codes == [0, 0], ended.stderr
    journal, bad = read_journal((tmp_path / "journal.jsonl").read_text())
    assert bad == 0
    measured = [record for record in journal if record["kind"] == "kernel"]
    assert {record["name"] for record in measured} >= {"pingpong", "bcast", "read", "pair", "turn"}
    assert len([record for record in measured if record["name"] == "pingpong"]) == len(
        [record for record in wanted if record["name"] == "pingpong"]
    )
    (run,) = [record for record in journal if record["kind"] == "trial"]
    assert run["passed"]
    assert run["rate_flops"] > 0
    assert ended.stderr.count("tune 2x1 hpl search") == 1, "one rank speaks"


def with_own_store(folder: str) -> None:
    """Run the commands of one rank with a store of its own in the folder of the test."""
    with patch.object(tuned, "store_folder", lambda: Path(folder) / "store"):
        mpi_rank(folder)


def test_all_ranks_of_a_launcher_are_one_group_and_a_mistake_ends_them_alike(
    standing: dict[int, StandingRanks], tmp_path: Path
) -> None:
    tune = ["tune", "hpl", "-N", "256", "--budget", "3s", "--threads", "1", "--json"]
    commands = {"tunes": [*tune, "-"], "mistaken": [*tune, "../there.json"]}
    (tmp_path / "there.json").write_text("")
    ended = standing[2].run(commands, tmp_path, __name__, "with_own_store")
    done = ended["tunes"]
    done.check(0)
    assert done.body["config"]["layouts"] == ["2x1"]
    assert all((one["ranks"], one["threads"]) == (2, 1) for one in done.body["curves"])
    assert done.stderr.count("tuning hpl for 3s") == 1
    ended["mistaken"].check(2)
    assert "there.json already exists" in ended["mistaken"].stderr
