"""Test tensors as messages of MPI, and the facts of MPI about devices."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr
from typing import Any

import pytest

from tests.support.ranks import StandingRanks, needs_mpi

pytestmark = needs_mpi

#: A fault of rank 1's device memory, the user's setting for MPI, the memory that is used, and the message.
DEVICES = [
    ("", "yes", "made-up device memory", ""),
    ("", "no", "made-up host memory", "mpi reports no support for the memory of these devices"),
    ("wrong", "yes", "made-up host memory", "lost a test message"),
    ("raises", "yes", "made-up host memory", "lost a test message"),
]


def tensors_of_every_type_travel() -> None:
    from mxpeak.comm.transports.mpi import world
    from tests.support.tensor_checks import check_tensors

    comm = world()
    check_tensors(comm)
    assert comm.bcast_object({"of": comm.rank}) == {"of": 0}
    turned = comm.split(0, -comm.rank)
    assert turned.rank == comm.size - 1 - comm.rank
    check_tensors(turned)


def device_memory_is_tried_on_somebodys_word_and_staged_where_it_fails() -> None:
    from mxpeak.comm.devices import check_device_messages
    from mxpeak.comm.transports.mpi import world
    from tests.support.tensor_checks import Device

    comm: Any = world()
    for fault, word, used, says in DEVICES:
        os.environ["MXPEAK_GPU_AWARE_MPI"] = word
        with redirect_stderr(io.StringIO()) as output:
            checked = check_device_messages(comm, Device(fault if comm.rank == 1 else ""), patience_s=1.0)
        case = f"{fault!r} {word}: {checked.transport.name}, {output.getvalue()}"
        assert checked.transport.name == used, case
        notes = output.getvalue().count("note: messages are staged through made-up host memory")
        assert notes == (1 if says and comm.rank == 0 else 0), case
        assert says in output.getvalue() or comm.rank > 0, case


def mpi_is_asked_whether_it_reads_devices_and_the_user_knows_better() -> None:
    from mxpeak.comm.transports.mpi import QUERIES, takes_devices
    from mxpeak.errors import UsageError

    for kind in QUERIES:
        assert takes_devices(kind, {"MXPEAK_GPU_AWARE_MPI": "yes"})
        assert not takes_devices(kind, {"MXPEAK_GPU_AWARE_MPI": "no"})
        assert not takes_devices(kind, {"MPIR_CVAR_ENABLE_GPU": "0"})
        assert takes_devices(kind, {}) in (True, False)  # a query of the loaded library
    with pytest.raises(UsageError, match="use yes or no"):
        takes_devices("cuda", {"MXPEAK_GPU_AWARE_MPI": "perhaps"})


def main() -> None:
    """Run all checks as one rank, because loading torch takes longer than any of them."""
    tensors_of_every_type_travel()
    device_memory_is_tried_on_somebodys_word_and_staged_where_it_fails()
    mpi_is_asked_whether_it_reads_devices_and_the_user_knows_better()


def test_on_mpi_ranks(standing: dict[int, StandingRanks]) -> None:
    standing[2].call(__name__, "main")
