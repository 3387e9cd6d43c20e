"""`mxpeak peak`: measure GEMM in each precision, memory rates and their balance in a few seconds."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.cli.ranks import join_ranks, read_on_root
from mxpeak.cli.request import add_options
from mxpeak.configs.run import PlaceConfig, RunConfig
from mxpeak.errors import ExitCode
from mxpeak.options import path_name, resolve
from mxpeak.perf.published import published_rates
from mxpeak.records import figure_text, fp64_scheme, three_digits

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak peak
  mpiexec -n 2 mxpeak peak --json -
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `peak`."""
    parser.description = "Measure the GEMM, memory-read and triad rates of this machine on all ranks at the same time."
    parser.epilog = EXAMPLES
    add_options(parser, PlaceConfig)
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.set_defaults(action=peak)


def peak(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Measure the rates on all ranks, print or write them on rank 0, and return the exit code. Collective."""
    config = read_on_root(args, session, lambda: _config(args))
    code = join_ranks(config, argv, session)
    return _measure(config, args, argv, session) if code is None else code


def _config(args: argparse.Namespace) -> RunConfig:
    """Return the configuration from flags and variables; raise a UsageError if the --json file cannot be created."""
    from mxpeak.cli.output import check_file

    if args.json not in (None, "-"):
        check_file(Path(args.json))
    settings = resolve(PlaceConfig, vars(args), os.environ, {})
    return RunConfig(**{name: setting.value for name, setting in settings.items()})


def _measure(config: RunConfig, args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Measure the rates on the joined ranks, and print or write them on rank 0."""
    from mxpeak.bench.peak.run import run_peak
    from mxpeak.cli.output import show

    assert session.comm is not None
    body = run_peak(config, session.comm, argv=argv)
    if session.rank == 0:
        model = str(body["machine"].get("device_name") or body["machine"].get("cpu_model"))
        published = [rate.as_dict() for rate in published_rates(model)]
        body |= {"published": {"model": model, "rates": published}} if published else {}
        show(body, text_of(body), args.json, checked=True)
    return ExitCode.VALID


def text_of(body: dict[str, Any]) -> str:
    """Return the sustained rate and the burst rate per kernel, and the flops per byte of memory traffic, as text.

    For several ranks, a line states that the rates are totals. The published rates of the device follow if its model is
    known.
    """
    lines = []
    for rate in body["rates"]:
        burst = {"rate_bytes" if "rate_bytes" in rate else "rate_flops": rate["burst"]}
        emulated = f"  emulated ({scheme})" if (scheme := fp64_scheme(rate)) else ""
        lines.append(f"{rate['name']:<13} {figure_text(rate):>13}  burst {figure_text(burst)}{emulated}")
    balance = body["balance"]["flops_per_byte"]
    lines.append(f"{'balance':<13} {three_digits(balance)} {body['rates'][0]['name']} flops per byte read")
    if (ranks := body.get("launch", {}).get("ranks", 1)) > 1:
        lines.append(f"{'ranks':<13} {ranks}; each rate is the total of all ranks")
    if published := body.get("published"):
        lines += ["", f"published rates of one {published['model']}:"]
        lines += [f"{rate['name']:<13} {figure_text(rate):>13}  {rate['source']}" for rate in published["rates"]]
    return "\n".join(lines) + "\n"
