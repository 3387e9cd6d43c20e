"""`mxpeak run BENCHMARK --scaling-study`: run a benchmark on several rank counts with the same processes.

All ranks are started once. For a run on R ranks, the first R ranks form a group. The other ranks sleep: they look for
a message 50 times per second, so they use no core of a rank that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mxpeak.cli.request import RunRequest
from mxpeak.errors import UsageError
from mxpeak.options import count_text

if TYPE_CHECKING:
    from mxpeak.cli.session import Session
    from mxpeak.comm.base import Communicator


def study_requests(request: RunRequest, session: Session) -> list[RunRequest]:
    """Return one request per rank count of a scaling study, or the request itself without a study. Collective.

    All requests of a study have the same number of threads per rank.
    """
    from mxpeak.runtime.placement import on_device, threads_of

    if request.config.study is None:
        return [request]
    assert session.comm is not None
    threads = threads_of(session.comm) if request.config.threads is None else request.config.threads
    whole = on_device(request).with_choices({"threads": threads})
    return [replace(whole, of_ranks=ranks) for ranks in whole.config.ranks_list or ()]


def requests_with_ranks(
    requests: Sequence[RunRequest], session: Session, first: Callable[[], Mapping[str, Any] | None]
) -> Iterator[tuple[RunRequest, Communicator]]:
    """Yield each request with the communicator of its ranks. Ranks outside of this communicator sleep. Collective.

    `first` is called on rank 0 after the run on the fewest ranks. It returns the problem of this run, or None if the
    result is not valid.
    """
    assert session.comm is not None
    counts = [request.of_ranks for request in requests if request.of_ranks is not None]
    for k, request in enumerate(requests):
        if request.of_ranks is None:
            yield request, session.comm
            continue
        problem = session.on_root(first) if k else None
        if k and problem is None:
            session.log(f"study stopped: no valid result on {count_text(counts[0], 'rank')}")
            return
        yield from _on_first_ranks(request, session, counts, problem)


def _on_first_ranks(
    request: RunRequest, session: Session, counts: Sequence[int], problem: Mapping[str, Any] | None
) -> Iterator[tuple[RunRequest, Communicator]]:
    """Yield the request, with its problem size, and the communicator of the participating ranks.

    The first `request.of_ranks` ranks participate. The other ranks yield nothing and sleep until the run has ended.
    """
    from mxpeak.bench import scaling
    from mxpeak.comm.base import meet_asleep

    world, ranks = session.comm, request.of_ranks
    assert world is not None
    assert ranks is not None
    group = world.split(0 if world.rank < ranks else None, world.rank)
    if group is not None:
        sizes = scaling.sized(request.config, counts, ranks, problem)
        if not request.output.quiet:
            shown = [f"{name} {value[0] if isinstance(value, tuple) else value}" for name, value in sizes.items()]
            session.log(
                ", ".join([f"study: {counts.index(ranks) + 1} of {len(counts)}: {count_text(ranks, 'rank')}", *shown])
            )
        yield request.with_choices(sizes), group
    meet_asleep(world)


def requested_problem(request: RunRequest) -> dict[str, Any]:
    """Return N and NB of the run on the fewest ranks of a study, for a dry run; empty if the size is a local grid."""
    config: Any = request.config
    if hasattr(config, "nx"):
        return {}
    if not config.n:
        raise UsageError(
            "--dry-run cannot choose N for a --scaling-study, because only the run on the fewest ranks "
            "chooses it; add -N"
        )
    return {"n": config.n[0], "nb": config.nb[0]}


def study_section(request: RunRequest, runs: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    """Return the section `study` of a result file: the settings, the measured rates and the efficiencies."""
    from mxpeak.bench import scaling
    from mxpeak.bench.expected import expected_rates

    threads = request.config.threads or 1
    return scaling.scaling_study(request.config, threads, runs, lambda valid: expected_rates(valid, threads))
