"""Test ranks that are connected by sockets: the checks of every communicator, strangers, and lost ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.transports import sockets
from mxpeak.comm.transports.sockets import ANSWER, CALL, CALLERS, HELLO_S, LostRankError, Sockets, listening, meet
from tests.support.communicator_checks import check

SECRET = b"s" * 32


def on_ranks(size: int, body: Any, *, stranger: bytes | None = None) -> list[Any]:
    """Return the results of `body` on thread ranks; a stranger connects to the first rank before the others."""
    listeners = [listening("127.0.0.1") for _ in range(size)]
    addresses = [listener.getsockname() for listener in listeners]
    line = None
    if stranger is not None:
        line = socket.create_connection(addresses[0])
        line.sendall(stranger)

    def rank(number: int) -> Any:
        comm = meet(listeners[number], number, addresses, SECRET)
        listeners[number].close()
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


def dripping(stop: threading.Event, pause_s: float) -> Callable[[socket.socket], None]:
    """Return a caller that sends one byte after each pause and never completes the handshake."""

    def caller(line: socket.socket) -> None:
        with suppress(OSError):
            while not stop.wait(pause_s):
                line.sendall(b"a")

    return caller


#: Actions of strangers after they connect: many are silent, one sends slowly, one knows a rank but not the secret.
STRANGERS: dict[str, tuple[int, Callable[[socket.socket], object] | None]] = {
    "half-open": (3 * CALLERS, None),
    "wrong proofs": (50, lambda line: line.sendall(CALL.pack(1, b"x" * 32) + b"y" * 32)),
    "gone": (200, lambda line: line.close()),
    "too much": (20, lambda line: line.sendall(b"z" * 10_000)),
    "dripping": (20, None),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_do_not_delay_ranks(kind: str) -> None:
    count, does = STRANGERS[kind]
    stop, lines = threading.Event(), list[socket.socket]()
    listeners = [listening("127.0.0.1") for _ in range(3)]
    addresses = [listener.getsockname() for listener in listeners]

    def rank(number: int) -> float:
        begin = monotonic()
        comm = meet(listeners[number], number, addresses, SECRET, patience=60.0)
        took = monotonic() - begin
        assert comm.gather_objects(number) in ([0, 1, 2], None)
        comm.abort(0)
        return took

    with ThreadPoolExecutor(3 + count if kind == "dripping" else 3) as pool:
        try:
            for number in range(count):
                line = socket.create_connection(addresses[number % 2])
                lines.append(line)
                if kind == "dripping":
                    pool.submit(dripping(stop, 0.05), line)
                elif does is not None:
                    does(line)
            took = list(pool.map(rank, range(3)))
        finally:
            stop.set()
            for line in [*lines, *listeners]:
                line.close()
    assert max(took) < 0.5 * HELLO_S, f"{took}: no rank waits for the time that a stranger is given"


def test_a_stranger_has_one_deadline_for_its_whole_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes do not extend the deadline."""
    monkeypatch.setattr(sockets, "HELLO_S", 0.5)
    with listening("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(meet, listener, 0, [listener.getsockname(), ("127.0.0.1", 1)], SECRET, patience=3.0)
        begin = monotonic()
        with socket.create_connection(listener.getsockname()) as line:
            dripping(threading.Event(), 0.05)(line)  # until the connection is closed
        assert 0.4 < monotonic() - begin < 2.0
        with pytest.raises(LostRankError):
            ranks.result()


@pytest.mark.parametrize("rank", [0, 1, 3, 2**32 - 1])
def test_a_rank_that_is_not_expected_is_refused_although_it_knows_the_secret(rank: int) -> None:
    """Rank 1 of 3 expects only rank 2."""
    with listening("127.0.0.1") as listener, listening("127.0.0.1") as zero, ThreadPoolExecutor(2) as pool:
        addresses = [zero.getsockname(), listener.getsockname(), ("127.0.0.1", 1)]
        lines: dict[int, socket.socket] = {}
        until = monotonic() + 1.0
        answers = pool.submit(sockets._answer, listener, lines, range(2, 3), SECRET, until)
        with socket.create_connection(addresses[1]) as line:
            sockets._introduce(line, rank, SECRET, until)
            assert line.recv(1) == b"", "it hangs up"
        with pytest.raises(TimeoutError):
            answers.result()
        assert not lines


def test_who_answers_slowly_has_one_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HELLO_S", 0.3)
    stop = threading.Event()
    with listening("127.0.0.1") as listener, listening("127.0.0.1") as own, ThreadPoolExecutor(1) as pool:

        def impostor() -> None:
            with listener.accept()[0] as line:
                dripping(stop, 0.05)(line)

        pool.submit(impostor)
        begin = monotonic()
        with pytest.raises(LostRankError, match="timed out"):
            meet(own, 1, [listener.getsockname(), own.getsockname()], SECRET, patience=60.0)
        stop.set()
        assert monotonic() - begin < 3.0


def test_a_seat_that_is_closed_ends_the_wait_for_ranks() -> None:
    with listening("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(meet, listener, 0, [listener.getsockname(), ("127.0.0.1", 1)], SECRET, patience=60.0)
        sleep(0.1)
        begin = monotonic()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with pytest.raises(LostRankError, match=r"only \[0\] of 2 ranks"):
            waits.result()
        assert monotonic() - begin < 5.0


@pytest.mark.parametrize("proof", [b"p" * 32, None])
def test_no_data_are_read_from_a_peer_without_the_secret(proof: bytes | None) -> None:
    """It may send any answer, or return the bytes that it receives."""
    with listening("127.0.0.1") as listener, listening("127.0.0.1") as own, ThreadPoolExecutor(1) as pool:

        def stranger() -> bytes:
            line = listener.accept()[0]
            _, challenge = CALL.unpack(line.recv(CALL.size))
            line.sendall(ANSWER.pack(proof or challenge, challenge))
            with line:
                return line.recv(1)

        answer = pool.submit(stranger)
        with pytest.raises(LostRankError, match="does not have the secret"):
            meet(own, 1, [listener.getsockname(), own.getsockname()], SECRET)
        assert answer.result() == b""


ASKS: dict[str, Any] = {"wait": lambda request: request.wait(), "test": lambda request: any(iter(request.test, True))}


@pytest.mark.parametrize("asks", ASKS)
def test_waiting_for_a_lost_rank_raises_and_its_earlier_message_arrives(asks: str) -> None:
    def body(comm: Sockets) -> str:
        got = np.zeros(2)
        if comm.rank == 1:
            comm.isend(np.ones(2), 0, 7).wait()
            return "left"
        comm.irecv(got, 1, 7).wait()
        assert got.tolist() == [1.0, 1.0]
        request = comm.irecv(got, 1, 8)
        with pytest.raises(LostRankError, match="rank 1 has ended"):
            ASKS[asks](request)
        return "told"

    assert on_ranks(2, body) == ["told", "left"]


def test_ranks_agree_within_a_limit_and_a_rank_that_does_not_come_is_no_longer_waited_for() -> None:
    def body(comm: Sockets) -> str:
        assert comm.agree_within(True, 30.0) is True
        assert comm.agree_within(comm.rank == 0, 30.0) is False
        if comm.rank == 1:
            begin = monotonic()
            assert comm.agree_within(False, 0.3) is None
            assert 0.3 <= monotonic() - begin < 5.0
            with pytest.raises(LostRankError, match="rank 1 has closed its connections"):
                comm.barrier()
            return "closed"
        with pytest.raises(LostRankError, match="rank 1 has ended"):
            comm.irecv(np.zeros(2), 1, 8).wait()
        return "told"

    assert on_ranks(2, body) == ["told", "closed"]


def test_a_message_that_cannot_be_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out, for example: the waiting rank gets an error instead of waiting forever."""

    def no_memory(line: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(sockets, "_received", no_memory)
    monkeypatch.setattr("threading.excepthook", lambda told: None)

    def body(comm: Sockets) -> None:
        with pytest.raises(LostRankError, match="has ended"):
            comm.barrier()

    on_ranks(2, body)
    for reader in [thread for thread in threading.enumerate() if "_fill" in thread.name]:
        reader.join(10.0)  # otherwise it would end in the next test, which does not expect its exception


def test_ranks_that_do_not_connect_are_reported() -> None:
    with (
        listening("127.0.0.1") as listener,
        pytest.raises(LostRankError, match=r"only \[0\] of 2 ranks have connected to rank 0"),
    ):
        meet(listener, 0, [listener.getsockname(), ("127.0.0.1", 1)], SECRET, patience=0.2)
