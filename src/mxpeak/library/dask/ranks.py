"""Run tasks on the workers of a Dask cluster as ranks, and raise an error if a worker dies."""

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

#: Intervals at which the client checks whether the tasks are done, and whether the workers are alive, in seconds.
LOOK_S, ALIVE_S = 0.02, 0.5
#: Time in seconds to wait for the scheduler to report a dead worker after ranks have lost a peer.
GRACE_S = 5.0


class WorkerRanks:
    """The workers that store the factors of one matrix together. Worker k is rank k."""

    def __init__(self, client: Any, workers: Sequence[str]):
        self.client, self.workers = client, list(workers)
        self.name, self.secret = f"mxpeak-{token_hex(8)}", token_bytes(32)
        try:
            addresses = client.run(seats.take_seat, self.name, workers=self.workers)
        except BaseException:
            self.close()  # close the connections that the other workers have opened
            raise
        self.addresses = [tuple(addresses[worker]) for worker in self.workers]

    def turn(self) -> Any:
        """Return the Dask lock that serializes all calls, because each call needs a thread on every worker."""
        return Lock("mxpeak")

    def call(self, task: Callable[..., Any], arguments: Callable[[int], Sequence[Any]]) -> list[Any]:
        """Run a task on all ranks at the same time and return the results in rank order.

        If the ranks return an error, raise it. The caller must hold the lock returned by `turn`.
        """
        futures = [self._submit(rank, task, *arguments(rank)) for rank in range(len(self.workers))]
        try:
            self._wait(futures)
            results: list[Any] = self.client.gather(futures)
        except BaseException:
            self.close()  # Dask cannot stop a running task: no rank must wait for its peers during the next call
            self.client.cancel(futures)
            raise
        self._raise({rank: result for rank, result in enumerate(results) if isinstance(result, MxpeakError)})
        return results

    def fetch(self) -> Any:
        """Return a completed future of the solution x that the last call stored on rank 0.

        The caller must hold the lock returned by `turn` from before `call` until after `fetch`.
        """
        x = self._submit(0, seats.fetch)
        self._wait([x])
        return x

    def _submit(self, rank: int, task: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a task to the worker of one rank, and do not let Dask move it to another worker. Return the future."""
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
        """Free the factors and connections of these ranks on the workers, and end their blocked receives."""
        if self.client.status != "running":  # the workers no longer belong to this client
            return
        if self.client.asynchronous:  # the garbage collector runs in the event loop's thread, which must not block
            Thread(target=self.close, daemon=True).start()
            return
        there = self.client.nthreads()
        alive = [worker for worker in self.workers if worker in there]
        if alive:
            self.client.run(seats.leave_seat, self.name, workers=alive, on_error="ignore")

    def scatter(self, b: Any) -> Any:
        """Send an array to the workers and return its future; raise a LostRankError if a worker has died."""
        try:  # no content hash: another thread may scatter, and free, an equal b
            return self.client.scatter(b, workers=self.workers, hash=False)
        except OSError:  # Dask closes the connection to the worker, or finds no worker in time
            until = monotonic() + GRACE_S
            while monotonic() < until:
                self._check_alive()  # the scheduler may detect a dead worker later
                sleep(LOOK_S)
            raise

    def _wait(self, futures: Sequence[Any]) -> None:
        """Wait until all futures are done; raise an error if a worker dies or a task fails."""
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
        """Raise the error of the lowest rank, but prefer original errors to those of ranks that lost a peer.

        Return if there are no errors.
        """
        if not errors:
            return
        until = monotonic() + GRACE_S
        while all(isinstance(error, LostRankError) for error in errors.values()) and monotonic() < until:
            self._check_alive()  # the scheduler may detect a dead worker later than the ranks do
            sleep(LOOK_S)
        _, error = min(errors.items(), key=lambda item: (isinstance(item[1], LostRankError), item[0]))
        raise error


def the_client(client: Any) -> Any:
    """Return the given or the current Dask client; raise a UsageError inside a Dask task or without a usable client.

    A worker that runs such a task has no free thread for its rank.
    """
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
    """Return the given worker addresses, or by default the sorted addresses of all workers.

    Raises a UsageError for invalid addresses, and for a cluster that uses TLS or has no workers.
    """
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
