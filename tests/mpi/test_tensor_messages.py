"""Tensors as messages of MPI, and what MPI says about devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.test_hpl_under_mpi import MPIEXEC

if not os.environ.get("CI"):  # there, a missing MPI or torch is a failure
    pytest.importorskip("mpi4py", reason="MPI for Python is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no mpiexec beside this Python")

ROOT = Path(__file__).parents[2]


def on_ranks(size: int, check: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = f"from tests.mpi.test_tensor_messages import {check}; {check}(*{arguments})"
    command = [str(MPIEXEC), "-n", str(size), sys.executable, "-c", code]
    where = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=120)


def tensors() -> None:
    from mxpeak.comm.mpi import world
    from tests.support.tensor_checks import check_tensors

    comm = world()
    check_tensors(comm)
    assert comm.bcast_object({"of": comm.rank}) == {"of": 0}


@pytest.mark.parametrize("size", [2, 3])
def test_tensors_of_every_type_travel_between_mpi_ranks(size: int) -> None:
    run = on_ranks(size, "tensors")
    assert run.returncode == 0, run.stderr


def devices(fault: str, expected: str) -> None:
    from mxpeak.comm.devices import check_device_messages
    from mxpeak.comm.mpi import world
    from tests.support.tensor_checks import Device

    comm: Any = world()
    device = Device(fault if comm.rank == 1 else "")
    checked = check_device_messages(comm, device, patience_s=1.0)
    assert checked.transport.name == expected, checked.transport.name


@pytest.mark.parametrize(
    ("fault", "word", "used", "says"),
    [
        ("", "yes", "made-up device memory", ""),
        ("", "no", "made-up host memory", "mpi does not say that it reads the memory of these devices"),
        ("wrong", "yes", "made-up host memory", "a known buffer was lost"),
        ("raises", "yes", "made-up host memory", "a known buffer was lost"),
    ],
)
def test_device_buffers_are_tried_on_somebodys_word_and_staged_where_they_fail(
    fault: str, word: str, used: str, says: str
) -> None:
    run = on_ranks(2, "devices", fault, used, MXPEAK_GPU_AWARE_MPI=word)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("note: messages are staged through made-up host memory") == (1 if says else 0)
    assert says in run.stderr


def claims() -> None:
    from mxpeak.comm.mpi import QUERIES, takes_devices
    from mxpeak.errors import UsageError

    for kind in QUERIES:
        assert takes_devices(kind, {"MXPEAK_GPU_AWARE_MPI": "yes"})
        assert not takes_devices(kind, {"MXPEAK_GPU_AWARE_MPI": "no"})
        assert not takes_devices(kind, {"MPIR_CVAR_ENABLE_GPU": "0"})
        assert takes_devices(kind, {}) in (True, False)  # asked of the library that is loaded
    with pytest.raises(UsageError, match="set it to yes or no"):
        takes_devices("cuda", {"MXPEAK_GPU_AWARE_MPI": "perhaps"})


def test_mpi_is_asked_whether_it_reads_devices_and_the_user_knows_better() -> None:
    run = on_ranks(1, "claims")
    assert run.returncode == 0, run.stderr
