"""Set up the ranks of a command line: those of a launcher, those that mxpeak starts, or this process alone."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mxpeak.comm.transports.solo import DryRunCommunicator, Solo
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import UsageError
from mxpeak.runtime.parent_watch import ENDING

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

T = TypeVar("T")
#: Advice for finding the cause of a signal.
LOG = "; see the system's log for the cause (dmesg: Linux sends SIGKILL when memory is full)"
WHY: dict[int, str] = {
    signal.SIGPIPE: "",
    signal.SIGBUS: "; a mapped file had no memory left: check whether /dev/shm or a disk is full",
}


def read_on_root(args: argparse.Namespace, session: Session, read: Callable[[], T]) -> T:
    """Connect the ranks if a launcher started them, and return the result of `read` on rank 0 to all ranks.

    If `read` raises an error, all ranks raise it.
    """
    from mxpeak.runtime.launch import start
    from mxpeak.runtime.launcher import launched

    if not launched():
        return read()
    comm, device = (
        getattr(args, name, os.environ.get(f"MXPEAK_{name.upper()}", "auto")) for name in ("comm", "device")
    )
    session.comm = start(comm, device)
    return session.on_root(read)


def join_ranks(
    place: PlaceConfig,
    argv: list[str],
    session: Session,
    *,
    local_ranks: Callable[[PlaceConfig], int] | None = None,
    dry_ranks: int = 0,
) -> int | None:
    """Connect this process to the ranks of a run and return None, or start local ranks and return their exit code.

    `local_ranks` returns the number of ranks to start if neither a launcher nor --ranks sets it (default: 1).
    `dry_ranks` is the number of ranks that a dry run plans, or 0 without a dry run. A dry run starts no ranks and
    needs no MPI.
    """
    from mxpeak.runtime.launch import confirm, start
    from mxpeak.runtime.launcher import launcher

    if session.comm is None:
        ranks = place.ranks or 1
        if place.ranks is None and local_ranks is not None and launcher() is None and place.comm != "solo":
            ranks = local_ranks(place)
        if dry_ranks:
            ranks = place.ranks or dry_ranks
            session.comm = DryRunCommunicator(ranks) if ranks > 1 else Solo()
        elif ranks > 1:
            return _start(ranks, argv, place, session)
        else:
            session.comm = start(place.comm, place.device)
    confirm(place.comm, place.ranks, session.comm)
    return None


def _start(ranks: int, argv: list[str], config: PlaceConfig, session: Session) -> int:
    """Run the command line on local ranks, and return their exit code; if a signal has ended a rank, print its name."""
    from mxpeak.runtime.launch import respawn

    try:
        code = respawn(ranks, argv, config.comm)
    except UsageError as error:
        if config.ranks is not None:
            raise
        raise UsageError(
            f"mxpeak selected {ranks} ranks for this host, but could not start them: {error}, or use --ranks 1"
        ) from None
    if code > 128 and code - 128 not in ENDING:
        number = code - 128
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        advice = WHY.get(number, LOG)
        session.log(f"mxpeak: error: a rank was ended by {name}, which ended all ranks{advice}")
    return code
