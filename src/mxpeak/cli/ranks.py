"""From one command line to its ranks: those that a launcher started, those that it starts itself, or this one alone."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mxpeak.comm.transports.dry_run import DryRunCommunicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import UsageError
from mxpeak.runtime.parent_watch import ENDING

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

T = TypeVar("T")
#: Where to look for why a rank was ended by a signal.
LOG = "; see the system's log for the cause (dmesg: Linux sends SIGKILL when memory is full)"
WHY: dict[int, str] = {
    signal.SIGPIPE: "",
    signal.SIGBUS: "; a mapped file had no memory left: check whether /dev/shm or a disk is full",
}


def on_ranks(
    args: argparse.Namespace,
    argv: list[str],
    session: Session,
    read: Callable[[], T],
    place: Callable[[T], PlaceConfig],
    act: Callable[[T], int],
    local_ranks: Callable[[PlaceConfig], int] = lambda _: 1,
    planned: Callable[[T], int] = lambda _: 0,
) -> int:
    """Read what is asked for, join its ranks or start them, and act on all of them; the exit code.

    `local_ranks` returns how many to start if neither a launcher nor --ranks did, and `planned` for how many a dry run
    plans then (0: this is no dry run).  A dry run starts none, and needs no MPI.  Under a launcher rank 0 reads, once
    all ranks are there to receive its error.
    """
    from mxpeak.runtime.launch import confirm, launched, start

    if launched():
        session.comm = start(getattr(args, "comm", os.environ.get("MXPEAK_COMM", "auto")))
        wanted = session.on_root(read)
    else:
        wanted = read()
        ranks = _to_start(place(wanted), local_ranks)
        if least := planned(wanted):
            ranks = place(wanted).ranks or least
            session.comm = DryRunCommunicator(ranks) if ranks > 1 else Solo()
        elif ranks > 1:
            return _start(ranks, argv, place(wanted), session)
        else:
            session.comm = start(place(wanted).comm)
    confirm(place(wanted).comm, place(wanted).ranks, session.comm)
    return act(wanted)


def _to_start(config: PlaceConfig, local_ranks: Callable[[PlaceConfig], int]) -> int:
    """How many local ranks this process has to start, if more than one: itself is none of them then."""
    from mxpeak.runtime.launch import launcher

    if config.ranks is not None:
        return config.ranks
    return 1 if launcher() is not None or config.comm == "solo" else local_ranks(config)


def _start(ranks: int, argv: list[str], config: PlaceConfig, session: Session) -> int:
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
        session.say(f"mxpeak: error: a rank was ended by {_ended_by(code - 128)}")
    return code


def _ended_by(number: int) -> str:
    """The signal that ended a rank, and where to look for why."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"{name}, which ended all ranks{WHY.get(number, LOG)}"
