"""Who started us, and what was asked for against what was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxpeak.comm.launch import bind, confirm, launcher, start
from mxpeak.comm.solo import Solo
from mxpeak.comm.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.kernels.host import compiled


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, ("mpiexec (PMI)", 3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpiexec (Open MPI)", 0, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, ("srun", 5, 6)),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "77"}, None),  # a batch script outside of srun
        ({"PMI_RANK": "x", "PMI_SIZE": "8"}, None),
    ],
)
def test_the_launcher_is_known_by_its_variables(environ: dict[str, str], found: object) -> None:
    assert launcher(environ) == found


def test_without_a_launcher_there_is_one_rank() -> None:
    assert start().size == 1


def test_what_was_started_must_be_what_was_asked_for() -> None:
    confirm("auto", None, Solo())
    confirm("solo", 1, Solo())
    with pytest.raises(UsageError, match="--ranks 4 was asked for, but 1 rank was started; type: mpiexec -n 4"):
        confirm("auto", 4, Solo())

    def on_three(comm: object) -> None:
        with pytest.raises(UsageError, match="--comm solo runs one rank, but 3 were started"):
            confirm("solo", None, comm)  # type: ignore[arg-type]

    run_ranks(3, on_three)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_binding_returns_the_cores_there_were_before() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert bind(mine[:1]) == mine
    assert bind(mine) == mine[:1]


def test_a_cache_folder_that_cannot_be_made_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file, where a folder would be needed")
    monkeypatch.setenv("MXPEAK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    compiled.cache_directory.cache_clear()
    try:
        folder = compiled.cache_directory()
        assert folder.parent == tmp_path / "xdg" / "mxpeak"
        assert not compiled.is_cached()
        assert compiled.token() == compiled.token()
    finally:
        compiled.cache_directory.cache_clear()


def test_kernels_are_compiled_into_the_cache_and_not_into_the_package(tmp_path: Path) -> None:
    environ = {**os.environ, "MXPEAK_CACHE_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    package = Path(compiled.__file__).parent
    before = sorted(package.rglob("*.nb*"))
    command = [sys.executable, "-c", "import mxpeak.kernels.host.rows"]
    subprocess.run(command, env=environ, check=True)
    assert sorted(package.rglob("*.nb*")) == before
    assert list(tmp_path.rglob("rows.permute_rows-*.nbi"))
