"""The workers of a Dask cluster as ranks: found, called all at once, and told of when one of them dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_bytes, token_hex
from threading import Thread
from time import monotonic, sleep
from typing import Any

from dask.distributed import Client, Lock, get_client, get_worker

from mxpeak.comm.transports.sockets import LostRankError
from mxpeak.errors import MxpeakError, UsageError
from mxpeak.library.dask import seats

#: How often the client looks at its ranks, and how often whether their workers live.
LOOK_S, ALIVE_S = 0.02, 0.5
#: When ranks have lost another, the scheduler has so long to say why.
GRACE_S = 5.0


class Ranks:
    """Workers that hold a factored matrix together, worker k being rank k."""

    def __init__(self, client: Any, workers: Sequence[str]):
        self.client, self.workers = client, list(workers)
        self.name, self.secret = f"mxpeak-{token_hex(8)}", token_bytes(32)
        try:
            told = client.run(seats.take_seat, self.name, workers=self.workers)
        except BaseException:
            self.close()  # the seats that others have taken
            raise
        self.addresses = [tuple(told[worker]) for worker in self.workers]

    def turn(self) -> Any:
        """`with ranks.turn():` calls of other threads and clients wait: each call needs a thread of every worker."""
        return Lock("mxpeak")

    def call(self, task: Callable[..., Any], arguments: Callable[[int], Sequence[Any]]) -> list[Any]:
        """What a task gives on every rank, at the same time; an error of the ranks is raised here.  In a turn."""
        futures = [self._submit(rank, task, *arguments(rank)) for rank in range(len(self.workers))]
        try:
            self._wait(futures)
            results: list[Any] = self.client.gather(futures)
        except BaseException:
            self.close()  # Dask stops no task that runs: its rank must not wait for others in the next turn
            self.client.cancel(futures)
            raise
        self._raise({rank: result for rank, result in enumerate(results) if isinstance(result, MxpeakError)})
        return results

    def fetch(self) -> Any:
        """The future, done, of the x that the last call left with rank 0.  In the same turn."""
        x = self._submit(0, seats.fetch)
        self._wait([x])
        return x

    def _submit(self, rank: int, task: Callable[..., Any], *arguments: Any) -> Any:
        """A task on one rank's worker, and nowhere else."""
        return self.client.submit(
            task,
            self.name,
            *arguments,
            key=f"{self.name}-{task.__name__}-{token_hex(4)}-{rank}",
            workers=[self.workers[rank]],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def close(self) -> None:
        """Free what the workers hold for these ranks, and end what they may still wait for."""
        if self.client.status != "running":  # and its workers are not ours any longer
            return
        if self.client.asynchronous:  # the collector found us in the loop's own thread, which cannot wait for itself
            Thread(target=self.close, daemon=True).start()
            return
        there = self.client.nthreads()
        alive = [worker for worker in self.workers if worker in there]
        if alive:
            self.client.run(seats.leave_seat, self.name, workers=alive, on_error="ignore")

    def _wait(self, futures: Sequence[Any]) -> None:
        """Until all have ended; raises where a worker dies, or a rank fails alone."""
        looked = monotonic()
        while not all(future.done() for future in futures):
            sleep(LOOK_S)
            if monotonic() - looked > ALIVE_S:
                self._check_alive()
                self._check_errors(futures)
                looked = monotonic()
        self._check_errors(futures)

    def _check_errors(self, futures: Sequence[Any]) -> None:
        for rank, future in enumerate(futures):
            if future.status == "error":
                error = future.exception()
                raise MxpeakError(f"rank {rank}, {self.workers[rank]}: {type(error).__name__}: {error}") from error

    def _check_alive(self) -> None:
        there = self.client.nthreads()
        gone = [f"rank {rank}, {worker}" for rank, worker in enumerate(self.workers) if worker not in there]
        if gone:
            raise LostRankError(
                f"{len(gone)} of {len(self.workers)} workers died during the solve: {'; '.join(gone)}; see "
                "their logs for the cause (often the memory limit), and run the call again"
            )

    def _raise(self, errors: dict[int, MxpeakError]) -> None:
        """The first cause: ranks that were left alone are not."""
        if not errors:
            return
        until = monotonic() + GRACE_S
        while all(isinstance(error, LostRankError) for error in errors.values()) and monotonic() < until:
            self._check_alive()  # the scheduler may hear of a death later than the ranks
            sleep(LOOK_S)
        _, error = min(errors.items(), key=lambda one: (isinstance(one[1], LostRankError), one[0]))
        raise error


def the_client(client: Any) -> Any:
    """The client that is given, else the current one; not inside a task, whose worker could not be a rank meanwhile."""
    inside = None
    with suppress(ValueError):
        inside = get_worker().address
    if inside:
        raise UsageError(
            f"mxpeak.dask was called inside a task on {inside}, but it needs a free thread on every worker; "
            "use it in the process of the Client, or use mxpeak.solve(A, b) for an array in this task"
        )
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise UsageError(
                "there is no Dask cluster; use client = dask.distributed.Client() to start one, or use "
                "client= for an existing one"
            ) from None
    if not isinstance(client, Client):
        raise UsageError(
            f"client = {client!r} is not a Dask client; use a dask.distributed.Client, or None for the current client"
        )
    if client.asynchronous:
        raise UsageError(
            "the client is asynchronous, but mxpeak.dask waits for its ranks; use a Client without asynchronous=True"
        )
    return client


def the_workers(client: Any, workers: Sequence[str] | None) -> list[str]:
    """The addresses that are given, else those of all workers, in a fixed order."""
    there = client.nthreads()
    if not there:
        raise UsageError("the cluster has no workers; use client.cluster.scale(4) to start some")
    if secured := [worker for worker in there if worker.startswith("tls://")]:
        raise UsageError(
            f"{secured[0]} uses TLS, but ranks would send A and x unencrypted through plain sockets; use a cluster "
            "without TLS on a network that you trust, or mxpeak.DistributedMatrix on MPI ranks"
        )
    if workers is None:
        return sorted(there)
    if isinstance(workers, str) or not workers or len(set(workers)) != len(workers):
        raise UsageError(
            f"workers = {workers!r} is not a list of different addresses; use, for example, list(client.nthreads())"
        )
    if unknown := [worker for worker in workers if worker not in there]:
        raise UsageError(f"the cluster has no worker {unknown[0]}; use workers from {', '.join(sorted(there))}")
    return list(workers)
