"""Run the examples of README, docs and docstrings with small matrices, and parse their commands.

Other tests execute docs/project/extending.md (tests/bench/test_extending.py), the distributed pages (tests/mpi) and
docs/howto/dask.md (tests/library/test_dask.py).
"""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from mxpeak.cli.main import NO_ARGUMENTS, main, parsed
from mxpeak.cli.request import requests
from mxpeak.records import Result, document, to_json
from mxpeak.verbs.scan.command import scan_settings
from tests.support.pages import result

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SPARSE = ("docs/howto/iterative-methods.md", "docs/howto/solve-sparse.md", "docs/explanation/how-gmres-chooses.md")
OVER_RANKS = ("docs/explanation/algorithms/ldl-over-ranks.md",)
WITH_PYTHON = (
    "README.md",
    "docs/explanation/algorithms/emulated-products.md",
    "docs/explanation/algorithms/ldl-over-ranks.md",
    "docs/explanation/fp64-detection.md",
    "docs/explanation/how-solve-chooses.md",
    "docs/explanation/mixed-precision.md",
    "docs/howto/arrays-and-gradients.md",
    "docs/howto/changing-matrices.md",
    "docs/howto/gpus.md",
    "docs/howto/least-squares.md",
    "docs/howto/norms.md",
    "docs/howto/solve-dense.md",
    "docs/howto/symmetric-systems.md",
    "docs/reference/api.md",
    "docs/tutorials/first-solve.md",
    *SPARSE,
)
ELSEWHERE = ("howto/dask", "howto/distributed-dense", "howto/distributed-sparse", "project/extending")
#: Values that are too large for a test, or need a GPU, and their replacements.
SMALLER = {
    "grid=(2, 2), comm=": "grid=(1, 1), comm=",
    "torch.randn(40000, 40000,": "torch.randn(64, 64,",
    'device="cuda"': 'device="cpu"',
    'device="mps"': 'device="cpu"',
}


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


def modules_with_examples() -> list[str]:
    source = ROOT / "src"
    files = [file for file in source.rglob("*.py") if re.search(r"^ *>>> ", file.read_text("utf-8"), re.MULTILINE)]
    return sorted(".".join(file.relative_to(source).with_suffix("").parts) for file in files)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    if ".dask." in name:
        pytest.importorskip("dask", reason="dask is not installed")
    failed, tried = doctest.testmod(import_module(name))
    assert tried > 0
    assert failed == 0


def stand_ins(page: str) -> dict[str, Any]:
    """Return the values of names that a page uses without a definition, such as A and b."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(20261121)
    n = 128
    dense = rng.standard_normal((n, n)) + n * np.eye(n)
    by_rows = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr")
    tile = rng.standard_normal((64, 64))
    desc = [1, 0, n, n, 16, 16, 0, 0, n]  # ScaLAPACK's: dense, m, n, mb, nb, first process, leading dimension
    mx = import_module("mxpeak")
    matrix = by_rows if page in SPARSE else mx.DistributedMatrix.from_rows(dense) if page in OVER_RANKS else dense
    return {
        "A": matrix,
        "A_mps": torch.from_numpy(dense).float(),
        "A_csr": by_rows,
        "b": rng.standard_normal(n),
        "numpy_array": dense,
        "A00": tile,
        "A01": tile,
        "A10": tile,
        "A11": tile,
        "local": np.asfortranarray(dense),
        "desc": desc,
        "AB": rng.standard_normal((4, n)),
        "kl": 2,
        "ku": 1,
        "MPI": SimpleNamespace(COMM_WORLD=None),
        "mx": mx,
        "scipy": scipy,
        "torch": torch,
    }


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = stand_ins(page)
    for code in blocks(ROOT / page, "python"):
        for large, small in SMALLER.items():
            code = code.replace(large, small)
        exec(compile(code, page, "exec"), names)
    if page == "README.md":
        backward_error, solver, one_norm = capsys.readouterr().out.splitlines()
        assert 0.0 < float(backward_error) < 1.0
        assert re.fullmatch(r"\w+ \d+", solver)
        assert float(one_norm) > 0.0
    if page in ("docs/explanation/algorithms/emulated-products.md", "docs/explanation/fp64-detection.md"):
        assert capsys.readouterr().out == "".join(blocks(ROOT / page, "text"))


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of every call of mxpeak on a page, also of calls by a launcher."""
    lines = "".join(blocks(page, "sh", "")).replace("\\\n", " ")
    found = re.findall(r"^(?:.*&& |(?:mpiexec|srun|torchrun)\b.* )?mxpeak(?: (.*))?$", lines, re.MULTILINE)
    return [shlex.split(re.sub(r">\s*\S+", "", arguments), comments=True) for arguments in found]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags are valid, and the values form a configuration; plan and simulate are executed."""
    monkeypatch.chdir(tmp_path)
    for name, file in (("HPL.dat", "lists.dat"), ("HPL-MxP.dat", "mxp.dat")):
        shutil.copy(ROOT / "tests" / "golden" / file, tmp_path / name)
    (tmp_path / "mxpeak-out").mkdir()
    body = document([Result.from_dict(result("hpl", 1e12))])
    (tmp_path / "mxpeak-out" / "baseline.json").write_text(to_json(body))
    for arguments in commands(page):
        args = parsed(arguments or NO_ARGUMENTS)
        if args.verb == "run":
            assert requests(args, {}), arguments
        elif args.verb == "scan":
            assert scan_settings(args, {}), arguments
        elif args.verb in ("plan", "simulate"):
            assert main(arguments) == 0, arguments


def test_what_answers_at_once_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert main(["run", "hpl", "-N", "500", "--device", "cpu", "--threads", "1", "--dry-run"]) == 0
    assert "ready: mxpeak runs on the CPU" in capsys.readouterr().out


def test_every_page_with_python_is_run() -> None:
    found = [str(page.relative_to(ROOT)) for page in PAGES if blocks(page, "python")]
    assert sorted([*WITH_PYTHON, *(f"docs/{name}.md" for name in ELSEWHERE)]) == sorted(found)
