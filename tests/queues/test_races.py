"""Test that no benchmark or solver has a race on virtual GPUs, and that every wait is necessary or has a reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from mxpeak.comm.transports import nccl
from mxpeak.solvers.lu.lu import MixedLuOptions
from mxpeak.solvers.lu.panel import PanelOptions
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.hpl_ranks import system
from tests.support.queues import runs, windows
from tests.support.queues.deletions import sites, verdicts
from tests.support.queues.log import Log
from tests.support.queues.races import races

SPLIT = PivotedLuOptions(split=0.5)
LIBRARY = PivotedLuOptions(PanelOptions(bcast="lib"))
N = 60


def hpl(P: int, Q: int, transport: str, options: PivotedLuOptions = PivotedLuOptions()) -> runs.Found:  # noqa: B008
    """Run HPL, and check its solution against NumPy's."""
    results, logs = runs.hpl((P, Q), transport, options, N)
    x = {j: value for part, _ in results for j, value in part.items()}
    A, b = system(N)
    assert np.abs(np.array([x[j] for j in range(N)]) - np.linalg.solve(A, b)).max() < 1e-9
    return results, logs


def whole(name: str, P: int, Q: int, transport: str) -> runs.Found:
    """Run a benchmark, and check that it is valid."""
    results, logs = runs.benchmark(name, (P, Q), transport)
    assert all(result.status == "valid" for result in results[0])
    return results, logs


def factored(transport: str) -> runs.Found:
    """Run only HPL-MxP's factorization."""
    return [], windows.hpl_mxp((2, 1), 6, 6, range(6), MixedLuOptions("fp16"), transport)


def halo(transport: str) -> runs.Found:
    """Run HPG-MxP's solver on 2×2 boxes, or on two boxes with computed colors, and check that the residual falls."""
    colours = transport == "staged"
    results, logs = runs.hpg_mxp((1, 1 if colours else 2, 2), transport, colours=colours)
    assert all(history[-1] < 0.1 for history in results)
    return results, logs


def positive_definite(P: int, Q: int, transport: str, precision: str) -> runs.Found:
    """Run the Cholesky factorization, and compare the blocks below the diagonal with NumPy's."""
    results, logs = runs.factor_positive_definite((P, Q), transport, precision, n := 40)
    L = np.linalg.cholesky(runs.positive_definite(n))
    tolerance = 1e-13 if precision == "fp64" else 1e-2
    for minor, blocks in results:
        assert minor == 0
        assert max(abs(value - L[i, j]) for (i, j), value in blocks.items()) < tolerance * np.abs(L).max()
    return results, logs


CASES: dict[str, Callable[[], runs.Found]] = {
    "hpl 1x1": lambda: hpl(1, 1, "mpi"),
    "hpl 1x2 mpi": lambda: hpl(1, 2, "mpi", PivotedLuOptions(PanelOptions(bcast="1ring"))),
    "hpl 1x2 nccl": lambda: hpl(1, 2, "nccl"),
    "hpl 1x2 nccl lib": lambda: hpl(1, 2, "nccl", LIBRARY),
    "hpl 1x3 nccl long": lambda: hpl(1, 3, "nccl", PivotedLuOptions(PanelOptions(bcast="longM"))),
    "hpl 2x1 staged split": lambda: hpl(2, 1, "staged", SPLIT),
    "hpl 2x2 mpi split": lambda: hpl(2, 2, "mpi", SPLIT),
    "hpl 2x2 nccl split": lambda: hpl(2, 2, "nccl", SPLIT),
    "hpl 2x2 nccl plain": lambda: hpl(2, 2, "nccl", PivotedLuOptions(lookahead=0)),
    "hpl 2x3 mpi long": lambda: hpl(2, 3, "mpi", PivotedLuOptions(PanelOptions(bcast="long"))),
    "hpl 2x3 staged split": lambda: hpl(2, 3, "staged", PivotedLuOptions(PanelOptions(bcast="2ring"), split=0.5)),
    "cholesky 1x2 nccl": lambda: positive_definite(1, 2, "nccl", "fp16"),
    "cholesky 2x2 mpi": lambda: positive_definite(2, 2, "mpi", "fp64"),
    "cholesky 2x2 staged": lambda: positive_definite(2, 2, "staged", "fp64"),
    "hpl whole": lambda: whole("hpl", 1, 2, "mpi"),
    "hpl-mxp 1x2 mpi": lambda: whole("hpl-mxp", 1, 2, "mpi"),
    "hpl-mxp 2x1 staged": lambda: factored("staged"),
    "hpl-mxp 2x2 nccl": lambda: whole("hpl-mxp", 2, 2, "nccl"),
    "norms 2 mpi": lambda: whole("norms", 1, 2, "mpi"),
    "hpg-mxp 4 mpi": lambda: halo("mpi"),
    "hpg-mxp 4 nccl": lambda: halo("nccl"),
    "hpg-mxp 2 staged": lambda: halo("staged"),
    "hpcg 2 mpi": lambda: runs.hpcg((1, 1, 2), "mpi"),
    "solve": runs.solve,
    "solve fp16": lambda: runs.solve("fp16", 600),
    "gmres": runs.gmres,
}


@cache
def logs_of(name: str) -> list[Log]:
    """Return the logs of the ranks of a case."""
    return CASES[name]()[1]


@pytest.mark.parametrize("name", CASES)
def test_every_two_operations_on_the_same_memory_are_in_order(name: str) -> None:
    for log in logs_of(name):
        assert not [str(race) for race in races(log)]


def test_a_message_of_nccl_that_does_not_wait_for_its_buffer_is_reported() -> None:
    """The panel is computed in the side stream, and its broadcast starts while the main stream is current."""
    with patch.object(nccl.Channel, "_behind", lambda self, events: nullcontext()):
        _, logs = hpl(1, 2, "nccl")
    text = str(races(logs[0])[0])
    assert "phase rfact" in text
    assert "NCCL send" in text
    assert "comm/transports/nccl.py" in text


#: The query of a message's memory before the message begins, and the wait that repeats the query when it does.
LOOK = ("comm/deferred.py", "_Later.ready")
SETTLED = ("async_buffer.py", "AsyncBuffer.fulfilled")
#: Functions with waits that are redundant, and those that virtual GPUs do not reach.
#: benchmarks/notes/2026-11-gpu-unproven.md has the reasons.
NOT_NEEDED = {
    LOOK,
    ("comm/transports/torchdist.py", "_Collective.test"),  # the work is complete: the wait only raises its error
    ("kernels/torch/engine/device.py", "Device.wait"),
    ("kernels/torch/engine/device.py", "Device.seconds"),
    ("kernels/torch/kernels.py", "TorchKernels.wait"),
}
NOT_MET = {
    ("comm/transports/gloo.py", "Message.test"),
    ("comm/transports/gloo.py", "Message.wait"),
    ("comm/transports/gloo.py", "Message._await_work"),
    ("comm/transports/gloo.py", "Group.close"),
    ("comm/transports/torchdist.py", "TorchDist._is_complete_within"),
    ("comm/transports/torchdist.py", "TorchDist.gather_objects"),
    ("comm/transports/torchdist.py", "TorchDist._object_of"),
    ("comm/transports/nccl.py", "connected"),
    ("solvers/abft/checksums.py", "Checks.finish"),  # checksums and checkpoints exist only for matrices in host memory
    ("kernels/torch/lu/cublas.py", "CublasEmulation._count"),  # virtual GPUs have no cuBLAS
    ("solvers/lu/pipeline.py", "Pipeline.save"),
    ("solvers/butterfly.py", "_Exchange.arrived"),  # no case of these tests transforms its matrix
    ("solvers/lu/triangular.py", "_solve_by_rows"),  # devices solve in rounds instead
    ("distributed/rank_group.py", "RankGroup._send_and_receive"),  # rows of a user's matrix are sent between hosts
    ("distributed/rows.py", "distribute"),
    ("distributed/rows.py", "at_their_owners"),
    ("distributed/symmetric.py", "fill_upper"),  # no case of these tests has an indefinite matrix
    ("solvers/precond/factors.py", "CompleteFactors._solve_on_root"),  # only hosts have complete factors
}
#: Messages between hosts.
OF_HOSTS = ("distributed/halo.py", "comm/exchange.py")


def test_leaving_out_any_wait_that_is_needed_is_reported() -> None:
    # all ranks with boxes do the same
    reported = verdicts(log for name in CASES for log in logs_of(name)[: 2 if name.startswith("hpl") else 1])
    named = {verdict: (verdict.site.file, verdict.site.function) for verdict in reported}
    silent = {named[verdict] for verdict in reported if verdict.reached and not verdict.race}
    assert silent == NOT_NEEDED
    unmet = {named[verdict] for verdict in reported if not verdict.reached and verdict.site.file not in OF_HOSTS}
    assert unmet == NOT_MET
    assert sum(bool(verdict.race) for verdict in reported) >= 20


def test_a_message_that_is_begun_without_a_look_or_a_wait_for_its_memory_is_reported() -> None:
    """One of them is necessary, and either is sufficient."""
    both = [site for site in sites() if (site.file, site.function) in (LOOK, SETTLED)]
    assert len(both) == 2
    found = races(logs_of("hpl 2x2 mpi split")[0], lambda wait: any(site.matches(wait) for site in both))
    assert any("MPI send" in str(race) for race in found)
