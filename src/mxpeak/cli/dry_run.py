"""`mxpeak run --dry-run` and --print-dat: show settings, memory and expected time, or print an input file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import panel_row
from mxpeak.bench.registry import load
from mxpeak.cli.request import RunRequest, settings_table
from mxpeak.cli.run_history import last_rate
from mxpeak.cli.scaling import requested_problem, requests_with_ranks
from mxpeak.comm.transports.solo import DryRunCommunicator
from mxpeak.errors import ExitCode, UsageError
from mxpeak.records import rate_text
from mxpeak.runtime.placement import map_of_a_node, on_device

if TYPE_CHECKING:
    from mxpeak.cli.session import Session


#: The largest number of ranks per node that are listed individually.
MAX_RANKS = 16


def dry_run(wanted: list[RunRequest], session: Session) -> int:
    """Print the plan of a run on rank 0; return a nonzero exit code if it does not fit into memory. Collective."""
    fits = True
    for request, group in requests_with_ranks(wanted, session, lambda: requested_problem(wanted[0])):
        comm = group if request.of_ranks is None else DryRunCommunicator(request.of_ranks)
        described = import_module(request.benchmark.module).dry_run(request.config, comm, request.origins)
        plan = described if isinstance(described, DryRun) else DryRun(str(described))
        fits = fits and plan.fits
        settled = on_device(request).config
        ranks, cautions = map_of_a_node(settled, comm, panel_row(settled, comm))
        if session.rank == 0:
            verdict = "fits in memory" if plan.fits else "does not fit in memory"
            expected = _time_line(request, plan, comm.size, device=settled.device != "cpu")
            lines = [f"{request.benchmark.name}: {verdict}", expected]
            lines += [f"warning: {caution.text}; {caution.hint}" for caution in cautions]
            lines += [f"note: {text}" for text in request.notes]
            more = len(ranks) - 1 - MAX_RANKS
            ranks = [*ranks[: MAX_RANKS + 1], f"… and {more} more"] if more > 0 else ranks
            lines += [plan.text.rstrip("\n"), "ranks of a node:", *(f"  {line}" for line in ranks)]
            lines.append("settings (the others have their defaults):")
            print("\n".join(line for line in lines if line))
            print(settings_table(plan.run or request), end="")
    return ExitCode.VALID if fits else ExitCode.RESOURCE


def _time_line(request: RunRequest, plan: DryRun, ranks: int, *, device: bool) -> str:
    """Return a line with the expected time of the timed part, or an empty string if the flop count is unknown or 0.

    `device` states whether the run uses a GPU.
    """
    from mxpeak.watch.progress import duration

    if plan.time_s is not None:
        return f"expected time: {duration(plan.time_s)} for the timed part, at least twice as long in total"
    if not plan.flops or not plan.fits:
        return ""
    config = (plan.run or request).config
    orders, precisions = getattr(config, "n", None) or (), getattr(config, "precision", None) or ()
    only = precisions[0] if isinstance(precisions, tuple) and len(precisions) == 1 else None
    rate = last_rate(request.benchmark.name, ranks, max(orders, default=0), precision=only, device=device)
    if rate is None and request.config.quick:
        return "expected time: unknown, because this case has not run here; run it without --dry-run"
    if rate is None:
        first = f"mxpeak run {request.benchmark.name} --quick"
        return f"expected time: unknown, because no case of about this size has run here; use {first}"
    return f"expected time: {duration(plan.flops / rate)} at {rate_text(rate)}, the rate of the last run here"


def print_dat(request: RunRequest, session: Session) -> int:
    """Print these settings as an input file of the benchmark, such as HPL.dat."""
    form = request.benchmark.input
    if form is None or not form.writer:
        raise UsageError(f"{request.benchmark.name} has no input file to print; remove --print-dat")
    if session.rank == 0:
        print(load(form.writer)(request.config.with_sample()), end="")
    return ExitCode.VALID
