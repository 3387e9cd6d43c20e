"""Test dense systems on a Dask cluster of four worker processes, and the page that shows them."""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from tests.support.roundoff import U

dask = pytest.importorskip("dask", reason="dask is not installed: pip install 'mxpeak[dask]'")
da = pytest.importorskip("dask.array", reason="dask is not installed: pip install 'mxpeak[dask]'")
distributed = pytest.importorskip("dask.distributed", reason="distributed is not installed")
get_mp_context = pytest.importorskip("distributed.utils").get_mp_context
ranks = pytest.importorskip("mxpeak.library.dask.ranks")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "dask.md"
N = 203
RNG = np.random.default_rng(20261123)
A, B = RNG.standard_normal((N, N)), RNG.standard_normal((N, 2))


def eta(A: Any, x: Any, b: Any) -> float:
    """Return the backward error in units of n·u."""
    scale = np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - A @ x).max() / (scale * len(A) * U))


#: Modules that workers need: a process imports them once, and workers are forked from it.
NEEDED = [
    "distributed",
    "dask.array",
    "mxpeak.library.dask.ranks",
    "mxpeak.library.dense",
    "mxpeak.kernels.host.kernels",
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # warnings of Dask itself about threads, ports and files
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(variable, "1")  # the default of Dask for workers that it restarts
        patch.setenv("PYTHONFAULTHANDLER", "1")  # a worker that crashes prints its stack
        patch.setitem(dask.config.config["distributed"]["worker"], "multiprocessing-method", "forkserver")
        get_mp_context().set_forkserver_preload(NEEDED)
        with (
            distributed.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client


def test_an_error_without_a_cluster_names_the_remedy() -> None:
    """This test must be the first one, because a client becomes the current one."""
    with pytest.raises(mx.UsageError, match="there is no Dask cluster; use"):
        mx.dask.solve(da.from_array(A), B)


@pytest.mark.parametrize("chunks", [(60, 50), (N, 7), N])
def test_chunks_of_any_size_are_solved_on_all_workers(client: Any, chunks: Any) -> None:
    x, info = mx.dask.solve(da.from_array(A, chunks=chunks), B, client=client)
    assert isinstance(x, np.ndarray)
    assert info.solved
    assert info.grid == (2, 2)
    assert eta(A, x, B) <= 2


def test_a_b_in_chunks_gives_an_x_in_the_same_chunks(client: Any) -> None:
    b = da.from_array(B, chunks=(64, 1))
    x, info = mx.dask.solve(da.from_array(A, chunks=100), b, transposed=True, precision="fp32", client=client)
    assert (info.precision, info.solved) == ("fp32", True)
    assert x.chunks == b.chunks
    assert eta(A.T, client.compute(x).result(), B) <= 2


def test_complex_numbers_are_solved_in_chunks(client: Any) -> None:
    Z, z = A + 1j * A.T[::-1], da.from_array(B + 1j * B[::-1], chunks=(64, 1))
    for M, b in ((Z, z), (Z, z.real), (A, z)):
        x, info = mx.dask.solve(da.from_array(M, chunks=100), b, client=client)
        assert info.solved
        assert (x.dtype, x.chunks) == (np.complex128, z.chunks)
        assert eta(M, client.compute(x).result(), b.compute()) <= 3


def test_structures_are_used_as_on_ranks(client: Any) -> None:
    S = A @ A.T + np.eye(N)
    half = da.from_array(np.tril(S) + 3 * np.triu(np.ones_like(S), 1), chunks=70)
    whole = da.from_array(S)
    for assume_a, M, name in (("pos", half, "Cholesky"), ("sym", half, "LDL^T"), ("auto", whole, "Cholesky")):
        x, info = mx.dask.solve(M, B, client=client, assume_a=assume_a, lower=True)
        assert (info.factorization, info.solved) == (name, True)
        assert eta(S, x, B) <= 3
    with pytest.raises(mx.NotPositiveDefiniteError, match="the leading minor of order 1 of 203 is not positive"):
        mx.dask.solve(-half, B, client=client, assume_a="pos", lower=True)
    with pytest.raises(mx.UsageError, match="unknown assume_a"):
        mx.dask.solve(half, B, client=client, assume_a="spd")


def test_factors_stay_with_the_workers_that_were_asked(client: Any) -> None:
    workers = sorted(client.nthreads())[:2]
    with mx.dask.lu_factor(da.from_array(A, chunks=90), client=client, workers=workers) as F:
        assert "203x203, on 2 workers" in repr(F)
        x, info = F.solve(B[:, 0])
        assert info.grid == (1, 2)
        assert eta(A, x, B[:, 0]) <= 2
        with pytest.raises(mx.UsageError, match=r"A is 203x203, but b has shape \(3,\)"):
            F.solve(np.ones(3))
        y, _ = F.solve(B[:, 1], transposed=True)
        assert eta(A.T, y, B[:, 1]) <= 2
    with pytest.raises(mx.UsageError, match="closed"):
        F.solve(B)


def test_each_of_two_threads_gets_the_x_of_its_own_b(client: Any) -> None:
    with mx.dask.lu_factor(da.from_array(A, chunks=90), client=client) as F, ThreadPoolExecutor(2) as pool:
        sides = [B[:, 0], B[:, 1]] * 4
        for b, (x, _) in zip(sides, pool.map(F.solve, sides)):
            assert eta(A, x, b) <= 2


def test_an_interrupted_call_leaves_no_rank_behind(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like Ctrl-C: tasks of the call may continue, but they must not mix with those of the next call."""
    with mx.dask.lu_factor(da.from_array(A, chunks=90), client=client) as F:
        monkeypatch.setattr(ranks.WorkerRanks, "_wait", broken_off)
        with pytest.raises(KeyboardInterrupt):
            F.solve(B[:, 0])
        monkeypatch.undo()
        with pytest.raises(mx.MxpeakError, match="the factors are lost"):
            F.solve(B[:, 1])
    x, _ = mx.dask.solve(da.from_array(A, chunks=90), B, client=client)
    assert eta(A, x, B) <= 2


def broken_off(*arguments: Any) -> None:
    raise KeyboardInterrupt


def solve_here() -> None:
    mx.dask.solve(da.from_array(A), B)


def test_a_solve_inside_a_task_is_refused(client: Any) -> None:
    with pytest.raises(mx.UsageError, match="called inside a task on tcp://"):
        client.submit(solve_here, pure=False).result()


def chunk_that_fails(block: Any, block_info: Any = None) -> Any:
    if block_info and block_info[0]["chunk-location"] == (1, 0):
        raise KeyError("lost")
    return block


def with_nan() -> Any:
    values = A.copy()
    values[150, 7] = np.nan
    return values


def singular() -> Any:
    values = A.copy()
    values[:, 5] = 0.0
    return values


MISTAKES: dict[str, tuple[type[mx.MxpeakError], str, Callable[[], Any], Any]] = {
    "NumPy's array": (mx.UsageError, "A is ndarray, not a Dask array", lambda: A, B),
    "a single dimension": (mx.UsageError, r"A has shape \(9,\)", lambda: da.ones(9), B),
    "three": (mx.UsageError, r"A has shape \(4, 4, 4\)", lambda: da.ones((4, 4, 4)), B),
    "unknown chunks": (mx.UsageError, "compute_chunk_sizes", lambda: da.ones((N, N))[da.ones(N) > 0], B),
    "text": (mx.UsageError, "dtype", lambda: da.from_array(np.full((N, N), "a")), B),
    "rows of b": (mx.UsageError, r"A is 203x203, but b has shape \(5,\)", lambda: da.from_array(A), np.ones(5)),
    "chunks of b": (mx.UsageError, r"b has shape \(5,\)", lambda: da.from_array(A), da.ones(5)),
    "NaN in b": (mx.UsageError, r"b\[0\] is nan", lambda: da.from_array(A), np.full(N, np.nan)),
    "NaN in chunks of b": (mx.UsageError, r"b\[0\] is nan", lambda: da.from_array(A), da.full(N, np.nan)),
    "NaN in A": (mx.UsageError, r"rank \d: A\[100:, 0:\]\[50, 7\] is nan", lambda: da.from_array(with_nan(), 100), B),
    "singular": (mx.SingularMatrixError, "pivot 6 of 203", lambda: da.from_array(singular(), 100), B),
    "a chunk that fails": (
        mx.UsageError,
        "Dask cannot compute .* of A.*KeyError: 'lost'",
        lambda: da.from_array(A, 110).map_blocks(chunk_that_fails, dtype=float, meta=np.empty((0, 0))),
        B,
    ),
    "a chunk of another shape": (
        mx.UsageError,
        r"rank \d: the chunk A\[\d+:, \d+:\] has shape \(5, \d+\), but A declares shape \(\d+, \d+\)",
        lambda: (M := da.from_array(A, 110)).map_blocks(lambda block: block[:5], dtype=float, chunks=M.chunks),
        B,
    ),
    "no room": (mx.ResourceError, "memory_limit is", lambda: da.ones((10**6, 10**6), chunks=10**5), np.ones(10**6)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_error_of_the_client(client: Any, name: str) -> None:
    kind, told, make, b = MISTAKES[name]
    with pytest.raises(mx.MxpeakError, match=told) as error:
        mx.dask.solve(make(), b, client=client)
    assert type(error.value) is kind


def test_workers_that_are_not_there_are_refused(client: Any) -> None:
    M = da.from_array(A)
    for workers, told in (([], "is not a list"), (["tcp://1.2.3.4:5"], "no worker tcp://1.2.3.4:5")):
        with pytest.raises(mx.UsageError, match=told):
            mx.dask.solve(M, B, client=client, workers=workers)
    with pytest.raises(mx.UsageError, match=r"client = 5 is not a Dask client; use a dask\.distributed\.Client"):
        mx.dask.solve(M, B, client=5)


def test_a_cluster_that_speaks_tls_is_refused() -> None:
    with pytest.raises(mx.UsageError, match="uses TLS, but ranks would send A and x unencrypted"):
        ranks.the_workers(SimpleNamespace(nthreads=lambda: {"tls://1.2.3.4:5": 1}), None)


def test_the_page_runs_from_top_to_bottom(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"the_client": client}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        code = code.replace("Client(n_workers=4, threads_per_worker=1)", "the_client").replace("= 2000", "= 400")
        exec(compile(code.replace("chunks=500", "chunks=100"), str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "solved: n = 400" in said
    assert float(said.split("largest residual:")[1].split()[0]) < 1e-13
    assert names["x"].shape == (400,)


def test_a_worker_that_dies_is_named_and_the_cluster_solves_again(client: Any) -> None:
    """This test must be the last one: it kills a worker, which Dask restarts."""
    M, pids = da.from_array(A, chunks=100), client.run(os.getpid)
    victim = sorted(pids)[2]
    F = mx.dask.lu_factor(M, client=client)
    os.kill(pids[victim], signal.SIGKILL)
    with pytest.raises(mx.MxpeakError, match=f"1 of 4 workers died during the solve: rank 2, {victim}"):
        F.solve(B)
    F.close()
    x, info = mx.dask.solve(M, B, client=client)
    assert info.solved
    assert eta(A, x, B) <= 2
