"""A job of mxpeak tune on real ranks: kernels and messages measured, a trial run, all of it in the journal once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from mxpeak.bench.tune.job import Job
from mxpeak.bench.tune.probe import probes
from mxpeak.perf.tuned import read_journal
from tests.support.ranks import MPIEXEC, StandingRanks, needs_mpi

pytestmark = needs_mpi


def test_two_ranks_do_a_job(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    wanted = probes(2, [], on_gpu=False, scale=32)
    others = [one for one in wanted if one["name"] not in ("pingpong", "bcast", "read")]
    trial = {
        "do": "trial",
        "benchmark": "hpl",
        "mode": "official",
        "size": {"n": 100},
        "phase": "search",
        "settings": {"nb": "16", "grid": "2x1", "split": "0.5"},
    }
    job = Job(
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
    found, bad = read_journal((tmp_path / "journal.jsonl").read_text())
    assert bad == 0
    measured = [one for one in found if one["kind"] == "kernel"]
    assert {one["name"] for one in measured} >= {"pingpong", "bcast", "read"}
    assert len([one for one in measured if one["name"] == "pingpong"]) == len(
        [one for one in wanted if one["name"] == "pingpong"]
    )
    (run,) = [one for one in found if one["kind"] == "trial"]
    assert run["passed"]
    assert run["rate_flops"] > 0
    assert ended.stderr.count("tune 2x1 hpl search") == 1, "one rank speaks"


#: mxpeak with a store of the test's own.
OWN_STORE = """
import sys
from pathlib import Path
from mxpeak.runtime import tuned
tuned.store_folder = lambda: Path(sys.argv[1])
from mxpeak.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_all_ranks_of_a_launcher_are_one_group(tmp_path: Path) -> None:
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-c", OWN_STORE, str(tmp_path / "store"), "tune", "hpl"]
    flags = ["-N", "256", "--budget", "3s", "--threads", "1", "--json", "-"]
    done = subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["config"]["layouts"] == ["2x1"]
    assert all((one["ranks"], one["threads"]) == (2, 1) for one in body["curves"])
    assert done.stderr.count("tuning hpl for 3s") == 1


def test_a_mistake_ends_all_ranks_of_a_launcher_alike(tmp_path: Path) -> None:
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-c", OWN_STORE, str(tmp_path / "store"), "tune", "hpl"]
    (tmp_path / "there.json").write_text("")
    done = subprocess.run([*command, "--json", "there.json"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "there.json exists" in done.stderr
