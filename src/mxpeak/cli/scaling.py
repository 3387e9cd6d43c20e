"""mxpeak run BENCHMARK --scaling-study: a series over counts of ranks, one group after the other on the same processes.

All ranks are started once.  For R of them the first R form a group, the others sleep: they look for a message fifty
times a second, and take no core from those that compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mxpeak.cli.request import RunRequest
from mxpeak.errors import UsageError

if TYPE_CHECKING:
    from mxpeak.cli.session import Session
    from mxpeak.comm.base import Communicator


def parts(request: RunRequest, session: Session) -> list[RunRequest]:
    """A request for each count of ranks, with the threads that all have; their sizes come later.  Collective."""
    from mxpeak.runtime.placement import on_device, threads_of

    if request.config.study is None:
        return [request]
    assert session.comm is not None
    threads = threads_of(session.comm) if request.config.threads is None else request.config.threads
    whole = on_device(request).with_choices({"threads": threads})
    return [replace(whole, of_ranks=ranks) for ranks in whole.config.ranks_list or ()]


def turns(
    requests: Sequence[RunRequest], session: Session, first: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[RunRequest, Communicator]]:
    """Each request with the ranks that run it, on these; the others sleep meanwhile.  Collective.

    `first` says on rank 0 which problem the first count of a series had, once it has run; None: none that is valid.
    """
    assert session.comm is not None
    counts = [request.of_ranks for request in requests if request.of_ranks is not None]
    for k, request in enumerate(requests):
        if request.of_ranks is None:
            yield request, session.comm
            continue
        problem = session.on_root(first) if k else None
        if k and problem is None:
            session.log(f"study stopped: no valid result on {_ranks(counts[0])}")
            return
        yield from _turn(request, session, counts, problem)


def _turn(
    request: RunRequest, session: Session, counts: Sequence[int], problem: Mapping[str, Any] | None
) -> Iterator[tuple[RunRequest, Communicator]]:
    from mxpeak.bench import scaling
    from mxpeak.comm.base import meet_asleep

    world, ranks = session.comm, request.of_ranks
    assert world is not None
    assert ranks is not None
    group = world.split(0 if world.rank < ranks else None, world.rank)
    if group is not None:
        sizes = scaling.sized(request.config, counts, ranks, problem)
        if not request.output.quiet:
            shown = ", ".join(
                f"{name} {value[0] if isinstance(value, tuple) else value}" for name, value in sizes.items()
            )
            at = f"study: {counts.index(ranks) + 1} of {len(counts)}: {_ranks(ranks)}"
            session.log(f"{at}, {shown}" if shown else at)
        yield request.with_choices(sizes), group
    meet_asleep(world)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def as_asked(request: RunRequest) -> dict[str, Any]:
    """The problem on the fewest ranks as far as it is known before it runs: what a dry run shows of a series."""
    config: Any = request.config
    if hasattr(config, "nx"):
        return {}
    if not config.n:
        raise UsageError(
            "--dry-run cannot choose N for a --scaling-study, because only the run on the fewest ranks "
            "chooses it; add -N"
        )
    return {"n": config.n[0], "nb": config.nb[0]}


def section(request: RunRequest, runs: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    """The section `study` of a result file."""
    from mxpeak.bench import scaling
    from mxpeak.bench.expected import curve

    threads = request.config.threads or 1
    return scaling.study(request.config, threads, runs, lambda valid: curve(valid, threads))
