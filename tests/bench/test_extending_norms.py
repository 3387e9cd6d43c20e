"""Test the norm kind of docs/project/extending.md in a copy of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import mxpeak

GUIDE = Path(__file__).parents[2] / "docs" / "project" / "extending.md"

#: Norms with the reference kernels, because a copy of the package would compile all others again.
PROGRAM = """
import numpy as np
import mxpeak as mx
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.bench.norms.run import run
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.norms import STRUCTURES
from mxpeak.kernels.reference.norms import ReferenceNorms
from mxpeak.library.norms import functions, prepare

functions.host_norms = prepare.host_norms = lambda threads: ReferenceNorms()
A = np.random.default_rng(1).standard_normal((7, 7))
lower = np.tril(A, -1)
for deterministic in (False, True):
    for structure, options, expected in (
        ("general", {}, abs(A).sum()),
        ("symmetric", {}, 2 * abs(lower).sum() + abs(A.diagonal()).sum()),
        ("triangular", {"diag": "unit"}, abs(lower).sum() + 7),
    ):
        for kind in ("sum", "entrywise"):
            value = mx.norm(A, kind, structure=structure, deterministic=deterministic, **options)
            assert abs(value - expected) <= 1e-14 * expected, (structure, deterministic, value, expected)
assert abs(mx.norms(A).sum - abs(A).sum()) <= 1e-14 * abs(A).sum()

quick = {"kernels": "reference", "threads": 1, "warmup": "none", "n": (19,), "nb": (4,)}
for deterministic in (False, True):
    config = NormsConfig(kind=("sum", "all"), structure=tuple(STRUCTURES), deterministic=deterministic, **quick)
    for result in run(config, Solo()):
        assert result.passed, result.validation
        assert "sum" in result.validation["errors"]
"""


def test_the_norm_kind_of_the_guide_works_in_all_its_places(tmp_path: Path) -> None:
    section = GUIDE.read_text(encoding="utf-8").split("\n## A norm kind\n")[1].split("\n## ")[0]
    changes = re.findall(r"^`([\w/.-]+)`[^\n]*:\n\n```diff\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert len(changes) <= 9
    package = tmp_path / "mxpeak"
    shutil.copytree(Path(mxpeak.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, diff in changes:
        file = package / name
        text = file.read_text(encoding="utf-8")
        for hunk in diff.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before, after = ("".join(line[1:] for line in lines if line[0] in marks) for marks in (" -", " +"))
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
