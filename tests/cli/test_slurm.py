"""Test that a shell reads the job scripts of `mxpeak slurm`, and that they contain the requested options."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.main import main, parsed
from mxpeak.cli.request import requests

GPUS = ["slurm", "hpl-mxp", "--nodes", "4", "--gpus-per-node", "8", "--cpus-per-rank", "7", "--", "-N", "2e6"]


def script(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("launcher", ["srun", "mpiexec", "torchrun"])
def test_each_launcher_starts_all_ranks(launcher: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, "slurm", "hpl", "--nodes", "2", "--ranks-per-node", "3", "--launcher", launcher)
    assert text.startswith(
        "#!/bin/bash\n#SBATCH --job-name=mxpeak-hpl\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=3\n"
    )
    line = {
        "srun": "srun --nodes=2 --ntasks=6 --ntasks-per-node=3 --cpu-bind=none \\\n  mxpeak run hpl",
        "mpiexec": "mpiexec -n 6 --bind-to none mxpeak run hpl",
        "torchrun": "torchrun --nnodes=2 --nproc-per-node=3",
    }[launcher]
    assert line in text
    assert "MXPEAK_CACHE_DIR" in text


@pytest.mark.parametrize("launcher", ["srun", "mpiexec", "torchrun"])
def test_no_launcher_binds_ranks_that_mxpeak_binds(launcher: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks that a launcher binds keep its cores: they cannot share cores, and the cores may be far from their GPU."""
    text = script(capsys, *GPUS[:8], "--launcher", launcher)
    commands = [line for line in text.splitlines() if not line.startswith("#")]
    bindings = [word for line in commands for word in line.split() if "bind" in word]
    assert bindings[:1] == (["--bind-to"] if launcher == "mpiexec" else ["--cpu-bind=none"])
    assert all(word in ("--bind-to", "--cpu-bind=none", "--gpu-bind=none") for word in bindings)
    assert "closest" not in text
    assert ("--cpus-per-task=56" in text) == (launcher == "torchrun"), "which starts all ranks of a node"


def test_a_job_on_gpus_has_a_rank_each_and_says_its_cores_twice(capsys: pytest.CaptureFixture[str]) -> None:
    text = script(capsys, *GPUS)
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert text.count("--cpus-per-task=7") == 2
    assert "--ntasks=32" in text
    assert "mxpeak run hpl-mxp -N 2e6 --device cuda --out" in text


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_command_in_a_script_is_one(benchmark: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = script(capsys, "slurm", benchmark, "--", "--repeat", "3").splitlines()[-1].strip()
    assert requests(parsed(shlex.split(line)[1:]), {})


def test_a_shell_reads_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["bash", "-n"], input=script(capsys, *GPUS), text=True, check=True)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["slurm", "hpl", "--", "--threds", "2"], "does not accept --threds 2; did you mean --threads?"),
        (["slurm", "hpl", "--gpus-per-node", "4", "--ranks-per-node", "3"], "use --ranks-per-node 4"),
        (["slurm", "hpl", "20000"], "does not accept 20000"),
        (["slurm", "scan", "--", "--threds", "2"], "mxpeak scan does not accept --threds 2; did you mean --threads?"),
        (["slurm", "peak", "--", "-x3"], "mxpeak peak does not accept -x3"),
        (["run", "hpl", "--", "--nb", "3"], "does not accept --nb 3"),
    ],
)
def test_mistakes_are_found_before_a_queue(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err
