"""The scripts of docs/distributed.md, each run on two real ranks."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
from scipy.sparse.linalg import spsolve

from tests.support.ranks import ROOT, StandingRanks, needs_mpi
from tests.support.sparse_systems import poisson

pytestmark = needs_mpi


def script(name: str) -> str:
    """The Python that follows the mention of a file on the page."""
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    found = re.search(rf"`{re.escape(name)}`.*?^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no script {name} on the page"
    return found[1]


def on_rank(name: str, folder: str) -> None:
    """Run a script, and keep what this rank prints."""
    from mpi4py import MPI

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(script(name), name, "exec"), {"__name__": "__main__"})
    (Path(folder) / str(MPI.COMM_WORLD.rank)).write_text(said.getvalue())


def test_rows_of_a_plate_are_solved(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    standing[2].call("tests.mpi.test_distributed_scripts", "on_rank", "heat.py", str(tmp_path))
    hottest = spsolve(poisson(64, 64).tocsc(), np.where(np.arange(64 * 64) % 64 == 32, 1.0, 0.0)).max()
    said = (tmp_path / "0").read_text()
    assert f"hottest: {hottest:.6f}, converged: True" in said
    assert "on the largest of 2 ranks" in said
    assert not (tmp_path / "1").read_text()
