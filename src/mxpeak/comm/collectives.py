"""Collectives of scalars, labels and errors, which return the same result on every rank."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar, cast
from zlib import crc32

from mxpeak.comm.base import Communicator, meet_asleep
from mxpeak.errors import MxpeakError, UsageError

T = TypeVar("T")


def allreduce_scalars(comm: Communicator, values: list[float], op: str, xp: Any = None) -> list[float]:
    """Return the sum or the maximum of each value over all ranks; a NaN on one rank makes the result NaN on all ranks.

    `xp` is the array namespace of the device whose memory the communicator reduces, or None for host memory.
    Collective.
    """
    if comm.size == 1:
        return values
    if xp is None:
        buffer = array("d", values)
        comm.allreduce(buffer, op)
        return list(buffer)
    on_device = xp.asarray(values, dtype=xp.float64)
    comm.allreduce(on_device, op)
    return list(on_device.tolist())


def allreduce_scalar(comm: Communicator, value: float, op: str, xp: Any = None) -> float:
    """Return the sum or the maximum of one value over all ranks; see `allreduce_scalars`. Collective."""
    return allreduce_scalars(comm, [value], op, xp)[0]


def split_by_label(comm: Communicator, label: str) -> Communicator:
    """Return the communicator of the ranks with the same label. Collective.

    Ranks are first grouped by the checksum of the label, so that no rank gathers the labels of all ranks.
    """
    likely = comm.split(crc32(label.encode()) >> 1, comm.rank)
    assert likely is not None
    if likely.agree(likely.bcast_object(label) == label):
        return likely
    labels = sorted(set(likely.bcast_object(likely.gather_objects(label))))
    group = likely.split(labels.index(label), likely.rank)
    likely.free()
    assert group is not None
    return group


def is_leader(comm: Communicator, label: str) -> bool:
    """Return whether this rank is the first of the ranks with the same label. Collective."""
    group = split_by_label(comm, label)
    first = group.rank == 0
    group.free()
    return first


def run_on_root(comm: Communicator, action: Callable[[], T]) -> T:
    """Run `action` on rank 0, and return its result or raise its error on all ranks. Collective.

    The other ranks sleep until rank 0 has finished.
    """
    answer: T | MxpeakError | None = None
    bug: Exception | None = None
    if comm.rank == 0:
        try:
            answer = action()
        except MxpeakError as error:
            answer = error
        except Exception as error:  # without an answer the other ranks would wait forever
            bug, answer = error, MxpeakError(f"rank 0: {type(error).__name__}: {error}")
    meet_asleep(comm)
    answer = comm.bcast_object(answer)
    if bug is not None:
        raise bug
    if isinstance(answer, MxpeakError):
        raise answer
    return answer


def raise_first_error(comm: Communicator, error: MxpeakError | None, *, limit_s: float = inf) -> None:
    """Raise the error of the lowest rank with an error on all ranks, prefixed by its rank number. Collective.

    If another rank also has an error, that rank raises the error of the lowest rank with its own error as the cause.
    Return if `error` is None on all ranks. If other ranks do not join this rank within the limit, raise its error on
    this rank only.
    """
    waits = error is None or limit_s == inf
    agreed = comm.agree(error is None) if waits else comm.agree_within(False, limit_s)
    if error is not None and agreed is None:
        raise type(error)(
            f"rank {comm.rank}: {error}; other ranks did not join this rank within {limit_s:.0f} s, so only this rank "
            "raises the error; if the function communicates, use one that raises on all ranks"
        )
    if agreed:
        return
    for rank, wrong in enumerate(comm.bcast_object(comm.gather_objects(error))):
        if wrong is not None:
            if comm.size == 1:
                raise wrong
            first = type(wrong)(f"rank {rank}: {wrong}")
            raise first from None if rank == comm.rank else error


def validate_on_all(
    comm: Communicator, work: Callable[[], T], must_match: Callable[[T], Any] | None = None, *, limit_s: float = inf
) -> T:
    """Run `work` on each rank and return its result; if it fails on a rank, raise the same error on all ranks.

    The error is that of the lowest rank on which `work` failed. `work` must not communicate, unless it fails on all
    ranks or a limit in seconds ends the wait of a failing rank for the others. `must_match` returns the part of a
    result that must be equal on all ranks. Collective.
    """
    if comm.size == 1:
        return work()
    result: T | None = None
    mistake: MxpeakError | None = None
    cause: Exception | None = None
    try:
        result = work()
    except MxpeakError as error:
        mistake = error
    except Exception as error:  # a defect, or a user's function: the other ranks would wait forever
        mistake, cause = MxpeakError(f"{type(error).__name__}: {error}"), error
    try:
        raise_first_error(comm, mistake, limit_s=limit_s)
    except MxpeakError as raised:
        raise raised from cause or raised.__cause__
    if must_match is not None:
        require_same(comm, str(must_match(cast(T, result))))
    return cast(T, result)


def require_same(comm: Communicator, text: str) -> None:
    """Raise UsageError on all ranks if the text of any rank differs from that of rank 0. Collective."""
    first = comm.bcast_object(text)
    mistake = UsageError(f"this rank uses {text}, but rank 0 uses {first}; use the same values on all ranks")
    raise_first_error(comm, mistake if text != first else None)
