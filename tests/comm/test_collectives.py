"""Test that collectives of scalars, labels and outcomes give the same result on every rank."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

import numpy as np
import pytest

from mxpeak.comm import collectives
from mxpeak.comm.collectives import (
    allreduce_scalar,
    allreduce_scalars,
    is_leader,
    raise_first_error,
    run_on_root,
    split_by_label,
    validate_on_all,
)
from mxpeak.comm.transports import threads
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import MxpeakError, ResourceError, UsageError

LABELS = ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("checksum", [collectives.crc32, lambda label: 7])
def test_ranks_are_grouped_by_label_even_if_checksums_collide(checksum: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "crc32", checksum)

    def body(comm: Any) -> Any:
        group = split_by_label(comm, LABELS[comm.rank])
        return group.rank, group.size, group.bcast_object(comm.rank), is_leader(comm, LABELS[comm.rank])

    assert run_ranks(5, body) == [(0, 2, 0, True), (0, 2, 1, True), (0, 1, 2, True), (1, 2, 0, False), (1, 2, 1, False)]


@pytest.mark.parametrize("xp", [None, np])
def test_scalars_are_reduced_over_all_ranks_and_a_nan_reaches_them_all(xp: Any) -> None:
    def body(comm: Any) -> Any:
        sums = allreduce_scalars(comm, [1.0, float(comm.rank)], "sum", xp)
        return sums, allreduce_scalar(comm, -float(comm.rank), "max", xp)

    assert run_ranks(3, body) == [([3.0, 3.0], 0.0)] * 3
    for op in ("sum", "max"):
        value = run_ranks(3, lambda comm, op=op: allreduce_scalar(comm, np.nan if comm.rank == 1 else 1.0, op, xp))
        assert np.isnan(value).all()


def test_one_rank_gets_its_own_values() -> None:
    assert is_leader(Solo(), "x")
    assert allreduce_scalars(Solo(), [1.5, 2.0], "sum") == [1.5, 2.0]


def test_the_first_error_is_raised_on_all_ranks_with_its_rank() -> None:
    def body(comm: Any) -> str:
        raise_first_error(comm, None)
        try:
            raise_first_error(comm, ResourceError("no room") if comm.rank else None)
        except ResourceError as error:
            return str(error)
        return ""

    assert run_ranks(3, body) == ["rank 1: no room"] * 3
    with pytest.raises(ResourceError, match=r"^no room$"):
        raise_first_error(Solo(), ResourceError("no room"))


def test_each_rank_with_an_error_keeps_its_own() -> None:
    def body(comm: Any) -> tuple[str, str]:
        own = [None, ResourceError("no room"), UsageError("no file"), UsageError("no right")][comm.rank]
        with pytest.raises(ResourceError) as raised:
            raise_first_error(comm, own)
        assert raised.value.__cause__ is (own if comm.rank > 1 else None)
        return str(raised.value), repr(raised.value.__cause__)

    assert run_ranks(4, body) == [
        ("rank 1: no room", "None"),
        ("rank 1: no room", "None"),
        ("rank 1: no room", "UsageError('no file')"),
        ("rank 1: no room", "UsageError('no right')"),
    ]


def test_defects_of_two_ranks_are_the_causes_of_the_error() -> None:
    """The work of two ranks fails, one by a defect and one by an error of mxpeak; rank 0 only receives the error."""

    def work(rank: int) -> int:
        if rank == 2:
            raise UsageError("no file")
        return 1 // (rank - 1) if rank else 0

    def body(comm: Any) -> tuple[str, str]:
        try:
            validate_on_all(comm, lambda: work(comm.rank))
        except MxpeakError as error:
            return str(error), repr(error.__cause__)
        return "", ""

    raised = "rank 1: ZeroDivisionError: integer division or modulo by zero"
    defect = "ZeroDivisionError('integer division or modulo by zero')"
    assert run_ranks(3, body) == [(raised, "None"), (raised, defect), (raised, "UsageError('no file')")]


def test_a_single_rank_keeps_the_cause_of_its_error() -> None:
    error, cause = UsageError("no file"), OSError("no such file")
    error.__cause__ = cause
    with pytest.raises(UsageError, match=r"^no file$") as raised:
        raise_first_error(Solo(), error)
    assert raised.value.__cause__ is cause


def error_of(call: Any) -> str:
    try:
        return str(call())
    except MxpeakError as error:
        return f"{type(error).__name__}: {error}"


def test_the_result_or_the_error_of_rank_0_reaches_all_ranks() -> None:
    assert run_ranks(3, lambda comm: run_on_root(comm, lambda: comm.rank + 7)) == [7, 7, 7]

    def refuse() -> None:
        raise UsageError("no file")

    found = run_ranks(3, lambda comm: error_of(lambda: run_on_root(comm, refuse)))
    assert found == ["UsageError: no file"] * 3


def test_work_that_fails_on_one_rank_or_differs_between_ranks_is_an_error_on_all() -> None:
    def fails(comm: Any) -> float:
        return validate_on_all(comm, lambda: 1 / (comm.rank - 2))

    assert (
        run_ranks(3, lambda comm: error_of(lambda: fails(comm)))
        == ["MxpeakError: rank 2: ZeroDivisionError: division by zero"] * 3
    )

    def differs(comm: Any) -> int:
        return validate_on_all(comm, lambda: comm.rank // 2, lambda made: f"nb={made}")

    assert (
        run_ranks(3, lambda comm: error_of(lambda: differs(comm)))
        == ["UsageError: rank 2: this rank uses nb=1, but rank 0 uses nb=0; use the same values on all ranks"] * 3
    )
    assert run_ranks(2, lambda comm: validate_on_all(comm, lambda: comm.size, str)) == [2, 2]


def test_a_rank_that_computes_for_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank may compile kernels, which takes minutes on a busy machine."""
    monkeypatch.setattr(threads, "PATIENCE_S", 0.05)

    def body(comm: Any) -> int:
        if comm.rank == 0:
            time.sleep(0.5)
        comm.barrier()
        return len(comm.gather_objects(None) or ())

    assert run_ranks(2, body) == [2, 0]


@pytest.mark.parametrize("ended", [False, True])
def test_ranks_that_all_wait_fail_soon(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 0.05)

    def body(comm: Any) -> None:
        if not (ended and comm.rank):
            comm.irecv(np.zeros(1), 1 - comm.rank).wait()

    with pytest.raises(RuntimeError, match="no message arrived"):
        run_ranks(2, body)


def test_a_rank_that_computes_forever_fails_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 0.05)
    monkeypatch.setattr(threads, "PATIENCE_WITH_A_BUSY_RANK_S", 0.2)
    failed = Event()

    def body(comm: Any) -> None:
        if comm.rank == 0:
            assert failed.wait(60.0)
            return
        try:
            comm.barrier()
        finally:
            failed.set()

    with pytest.raises(RuntimeError, match="not all ranks reached"):
        run_ranks(2, body)
