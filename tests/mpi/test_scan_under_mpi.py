"""mxpeak scan under real mpiexec: structure, bits and codes on all ranks.  Rates are never looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import Ended, StandingRanks, mpiexec, needs_mpi
from tests.support.scans import open_bits

pytestmark = needs_mpi

#: So tolerant that no rank is slow, whatever else the machine does.
SMALL = ["scan", "-N", "96", "--nb", "16", "--rounds", "2", "--tolerance", "0.999", "--json", "-"]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[int, Ended]:
    """A scan of two and one of four ranks."""
    return {
        ranks: standing[ranks].run({"scan": SMALL}, tmp_path_factory.mktemp(f"scan{ranks}"))["scan"] for ranks in (2, 4)
    }


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_compute_the_same_bits_and_end_with_one_code(ranks: int, on_ranks: dict[int, Ended]) -> None:
    ended = on_ranks[ranks]
    body = ended.body
    ended.check(0 if body["status"] == "alike" else 3)
    assert body["wrong"] == open_bits(body) == []
    assert [one["rank"] for one in body["ranks"]] == list(range(ranks))
    bits = [one["bits"] for one in body["ranks"]]
    assert bits == [bits[0]] * ranks
    assert all(len(found) == 1 for found in bits[0].values())
    assert [group["ranks"] for group in body["groups"]] == [list(range(ranks))]
    assert "binding" not in body["launch"]


def test_mistakes_are_said_by_one_rank(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    commands = {"rounds": ["scan", "--rounds", "0"], "memory": ["scan", "-N", "9000000"]}
    ended = standing[2].run(commands, tmp_path)
    for name, code in (("rounds", 2), ("memory", 5)):
        ended[name].check(code)
        assert ended[name].stderr.count("error:") == 1


def test_one_command_starts_the_ranks_of_a_host_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mxpeak", *SMALL, "--ranks", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    body = json.loads(run.stdout)
    assert run.returncode == (0 if body["status"] == "alike" else 3), run.stderr
    assert len(body["ranks"]) == 2
    assert body["wrong"] == open_bits(body) == []


def test_more_ranks_than_cores_come_to_an_end(on_ranks: dict[int, Ended], tmp_path: Path) -> None:
    """The four that have run where they are more."""
    ranks = min(8, max(4, (os.cpu_count() or 1) + 1))
    if ranks in on_ranks:
        ended = on_ranks[ranks]
        body = ended.body
        ended.check(0 if body["status"] == "alike" else 3)
    else:
        run = mpiexec(ranks, *SMALL, cwd=tmp_path)
        body = json.loads(run.stdout)
        assert run.returncode == (0 if body["status"] == "alike" else 3), run.stderr
    assert len(body["ranks"]) == ranks
    assert body["wrong"] == open_bits(body) == []


def test_a_rank_whose_products_are_off_by_a_bit_is_named(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    commands = {"scan": [*SMALL, "--write-exclude", "exclude.txt"]}
    ended = standing[4].run(commands, tmp_path, "tests.support.wrong_products", "off_by_a_bit")["scan"]
    ended.check(3)
    body = ended.body
    found = [(one["rank"], one["result"], one["reason"]) for one in body["wrong"]]
    assert found == [(1, "lu", "differ"), (1, "gemm", "differ")]
    assert (ended.folder / "exclude.txt").read_text() == body["machine"]["hostname"].split(".")[0] + "\n"
