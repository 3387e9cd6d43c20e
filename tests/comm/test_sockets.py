"""Ranks that are connected by sockets: what every communicator does, strangers at the door, a rank that goes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mxpeak.comm import sockets
from mxpeak.comm.sockets import ANSWER, CALL, LostRankError, Sockets, listening, meet
from tests.support.communicator_checks import check

SECRET = b"s" * 32


def on_ranks(size: int, body: Any, *, stranger: bytes | None = None) -> list[Any]:
    """What a function of a communicator gives on ranks that are threads; a stranger calls the last of them first."""
    doors = [listening("127.0.0.1") for _ in range(size)]
    addresses = [door.getsockname() for door in doors]
    line = None
    if stranger is not None:
        line = socket.create_connection(addresses[0])
        line.sendall(stranger)

    def rank(number: int) -> Any:
        comm = meet(doors[number], number, addresses, SECRET)
        doors[number].close()
        try:
            return body(comm)
        finally:
            comm.abort(0)

    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))
    finally:
        if line is not None:
            line.close()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_on_sockets_do_what_every_communicator_does(size: int) -> None:
    def body(comm: Sockets) -> bool:
        check(comm)
        comm.barrier()
        return True

    assert on_ranks(size, body) == [True] * size


def test_arrays_of_any_type_and_size_arrive_bit_by_bit() -> None:
    sent = [
        np.arange(3_000_000.0),
        np.array([], np.float32),
        np.array([np.nan, -0.0]),
        np.array([1 + 2j], np.complex64),
    ]

    def body(comm: Sockets) -> None:
        for tag, array in enumerate(sent):
            if comm.rank == 0:
                comm.isend(array, 1, tag).wait()
            else:
                got = np.ones_like(array)
                comm.irecv(got, 0, tag).wait()
                assert got.tobytes() == array.tobytes()
        comm.barrier()

    on_ranks(2, body)


@pytest.mark.parametrize("words", [CALL.pack(1, b"x" * 32) + b"y" * 32, b"GET / HTTP/1.1"])
def test_a_stranger_without_the_secret_is_no_rank(words: bytes) -> None:
    assert on_ranks(2, lambda comm: comm.gather_objects(comm.rank), stranger=words)[0] == [0, 1]


@pytest.mark.parametrize("proof", [b"p" * 32, None])
def test_nothing_is_read_from_one_at_the_door_who_does_not_know_the_secret(proof: bytes | None) -> None:
    """He may answer anything, or return what he is sent."""
    with listening("127.0.0.1") as door, listening("127.0.0.1") as mine, ThreadPoolExecutor(1) as pool:

        def stranger() -> bytes:
            line = door.accept()[0]
            _, challenge = CALL.unpack(line.recv(CALL.size))
            line.sendall(ANSWER.pack(proof or challenge, challenge))
            with line:
                return line.recv(1)

        said = pool.submit(stranger)
        with pytest.raises(LostRankError, match="does not know the secret"):
            meet(mine, 1, [door.getsockname(), mine.getsockname()], SECRET)
        assert said.result() == b""


ASKS: dict[str, Any] = {"wait": lambda request: request.wait(), "test": lambda request: any(iter(request.test, True))}


@pytest.mark.parametrize("asks", ASKS)
def test_who_waits_for_a_rank_that_has_gone_is_told_and_what_it_sent_before_arrives(asks: str) -> None:
    def body(comm: Sockets) -> str:
        got = np.zeros(2)
        if comm.rank == 1:
            comm.isend(np.ones(2), 0, 7).wait()
            return "left"
        comm.irecv(got, 1, 7).wait()
        assert got.tolist() == [1.0, 1.0]
        request = comm.irecv(got, 1, 8)
        with pytest.raises(LostRankError, match="rank 1 has gone"):
            ASKS[asks](request)
        return "told"

    assert on_ranks(2, body) == ["told", "left"]


def test_a_message_that_cannot_be_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory runs out: the rank that waits is told, instead of waiting for ever."""

    def no_memory(line: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(sockets, "_received", no_memory)
    monkeypatch.setattr("threading.excepthook", lambda told: None)

    def body(comm: Sockets) -> None:
        with pytest.raises(LostRankError, match="has gone"):
            comm.barrier()

    on_ranks(2, body)
    for reader in [thread for thread in threading.enumerate() if "_fill" in thread.name]:
        reader.join(10.0)  # or it would end in the next test, where its exception is not expected


def test_ranks_that_do_not_come_are_told_of() -> None:
    with listening("127.0.0.1") as door, pytest.raises(LostRankError, match=r"of 2 ranks only \[0\] have met rank 0"):
        meet(door, 0, [door.getsockname(), ("127.0.0.1", 1)], SECRET, patience=0.2)
