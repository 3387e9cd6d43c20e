"""Run each script in examples/distributed/ on two MPI ranks, and test that all ranks end if one is killed."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.linalg import spsolve

from tests.support.processes import first_line, started
from tests.support.ranks import MPIEXEC, ROOT, StandingRanks, needs_mpi
from tests.support.sparse_systems import poisson

pytestmark = needs_mpi


def script(name: str) -> str:
    """Return the text of an example."""
    return (ROOT / "examples" / "distributed" / name).read_text(encoding="utf-8")


def on_rank(name: str, folder: str) -> None:
    """Run a script, and store the output of this rank."""
    from mpi4py import MPI

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.chdir(folder):
        exec(compile(script(name), name, "exec"), {"__name__": "__main__"})
    (Path(folder) / str(MPI.COMM_WORLD.rank)).write_text(output.getvalue())


def test_rows_of_a_plate_are_solved(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    standing[2].call("tests.mpi.test_distributed_scripts", "on_rank", "heat.py", str(tmp_path))
    hottest = spsolve(poisson(64, 64).tocsc(), np.where(np.arange(64 * 64) % 64 == 32, 1.0, 0.0)).max()
    said = (tmp_path / "0").read_text()
    assert f"hottest: {hottest:.6f}, converged: True" in said
    assert "on the largest of 2 ranks" in said
    assert not (tmp_path / "1").read_text()


def test_a_finite_element_matrix_is_assembled_and_solved(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    standing[2].call("tests.mpi.test_distributed_scripts", "on_rank", "fem.py", str(tmp_path))
    said = (tmp_path / "0").read_text()
    error = re.search(r"largest error: (\S+), converged: True", said)
    assert error is not None, said
    assert float(error[1]) < 1e-3  # of the order of h² = 1.6e-4


def test_a_kernel_system_is_read_from_a_file(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    standing[2].call("tests.mpi.test_distributed_scripts", "on_rank", "kernel.py", str(tmp_path))
    said = (tmp_path / "0").read_text()
    found, exact = (np.fromstring(text, sep=" ") for text in re.findall(r"(?:interpolated|exact): +\[(.*)\]", said))
    assert np.allclose(exact, [np.sin(1.2) * np.cos(1.8), np.sin(2.0) * np.cos(1.5)])
    assert np.abs(found - exact).max() < 1e-2


#: The place where rank 1 kills itself: when it computes entries again for a residual, or in a function used as A.
KILLED = {
    "dense": """
calls = []
def fn(i, j):
    calls.append(1)
    if len(calls) == 2:
        fault()
    return 1.0 / (1.0 + abs(i - j))
mx.solve(mx.DistributedMatrix.from_function(fn, 300), np.ones(300))
""",
    "sparse": """
import scipy.sparse as sp
def before(r):
    fault()
    return r
mine = sp.eye_array(200, format="csr")[100 * world.rank : 100 * (world.rank + 1)]
mx.gmres(mine, np.ones(100), M=before, comm=world)
""",
}


@pytest.mark.parametrize("name", KILLED)
def test_a_rank_killed_in_a_solve_ends_all_within_ten_seconds(name: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(
        "import os, signal\nimport numpy as np\nfrom mpi4py import MPI\n"
        "import mxpeak as mx\nworld = MPI.COMM_WORLD\n"
        "def fault():\n"
        "    if world.rank == 1:\n"
        "        print('the fault', flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{KILLED[name]}\nprint('went on', flush=True)\n"
    )
    with started([str(MPIEXEC), "-n", "2", sys.executable, "killed.py"], cwd=tmp_path) as run:
        assert first_line(run) == "the fault\n"
        out, _ = run.communicate(timeout=10)
    assert run.returncode != 0
    assert "went on" not in out


#: A function that raises on rank 1: inside of a message with rank 0, without messages, and outside of mxpeak.
RAISED = {
    "communicates": """
def multiply(x):
    calls.append(1)
    if len(calls) == 4 and world.rank == 1:
        raise OSError("the table is gone")
    y = np.concatenate(world.allgather(x))
    return (2.0 * y + np.roll(y, 1))[100 * world.rank :][:100]
mx.gmres(multiply, np.arange(100.0), comm=world)
""",
    "catches": """
def multiply(x):
    if world.rank == 1:
        raise OSError("the table is gone")
    return np.concatenate(world.allgather(x))[:100]
try:
    mx.gmres(multiply, np.arange(100.0), comm=world)
except mx.MxpeakError as error:
    import sys
    print(error, file=sys.stderr, flush=True)
    mx.gmres(lambda x: 2.0 * x, np.arange(100.0), comm=world)
""",
    "preconditions": """
import scipy.sparse as sp
def before(r):
    calls.append(1)
    if len(calls) == 2 and world.rank == 1:
        raise OSError("the table is gone")
    return r / (1.0 + world.allreduce(0.0))
A = sp.eye_array(200, format="csr") + sp.diags_array(np.ones(199) / 2, offsets=1)
mx.gmres(sp.csr_array(A)[100 * world.rank :][:100], np.arange(100.0), M=before, comm=world)
""",
    "outside": """
mx.solve(mx.DistributedMatrix.from_function(lambda i, j: 2.0 * (i == j), 20, comm=world), np.ones(20))
if world.rank == 1:
    raise OSError("the table is gone")
world.allreduce(1.0)
""",
    "alone": """
def multiply(x):
    if world.rank == 1:
        raise OSError("the table is gone")
    return 2.0 * x
mx.gmres(multiply, np.arange(100.0), comm=world)
""",
}


@pytest.mark.parametrize("name", RAISED)
def test_an_error_that_one_rank_raises_ends_all_ranks(name: str, tmp_path: Path) -> None:
    """The limit for ranks that wait inside of the function is shortened; the other one is that of an uncaught error."""
    (tmp_path / "raised.py").write_text(
        "import numpy as np\nfrom mpi4py import MPI\nimport mxpeak as mx\n"
        "from mxpeak.distributed import rank_group\nrank_group.PATIENCE_S = rank_group.FIRST_PATIENCE_S = 2.0\n"
        f"world = MPI.COMM_WORLD\ncalls = []\n{RAISED[name]}\nprint('went on', flush=True)\n"
    )
    with started([str(MPIEXEC), "-n", "2", sys.executable, "raised.py"], cwd=tmp_path) as run:
        out, err = run.communicate(timeout=40)
    assert run.returncode != 0
    assert "went on" not in out
    assert "the table is gone" in err
    if name in ("communicates", "catches", "preconditions"):
        assert "rank 1: " in err
        assert "other ranks did not join this rank within 2 s" in err
        assert "use one that raises on all ranks" in err
    if name == "catches":
        assert "all 2 ranks of 0 to 1 cannot communicate" in err
    if name == "alone":
        assert err.count("rank 1: OSError: the table is gone") == 2
        assert "did not join" not in err
