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
from mxpeak.options import resolve
from mxpeak.records import figure_text, three_digits, to_json

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
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.set_defaults(action=peak)


def peak(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Measure the rates on all ranks, and return the exit code. Collective."""
    config = read_on_root(args, session, lambda: _config(args))
    code = join_ranks(config, argv, session)
    return _measure(config, args, argv, session) if code is None else code


def _config(args: argparse.Namespace) -> RunConfig:
    """Return the config from the command line, after a check of the file of --json."""
    from mxpeak.cli.output import check_file

    if args.json not in (None, "-"):
        check_file(Path(args.json))
    settings = resolve(PlaceConfig, vars(args), os.environ, {})
    return RunConfig(**{name: one.value for name, one in settings.items()})


def _measure(config: RunConfig, args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Measure, and print or write the rates on rank 0."""
    from mxpeak.bench.peak.run import run
    from mxpeak.cli.output import write_new

    assert session.comm is not None
    body = run(config, session.comm, argv=argv)
    if session.rank != 0:
        return ExitCode.VALID
    if args.json == "-":
        print(to_json(body), end="")
        return ExitCode.VALID
    if args.json is not None:
        write_new(Path(args.json), to_json(body))
    print(text_of(body), end="")
    return ExitCode.VALID


def _burst_text(rate: dict[str, Any]) -> str:
    """Return the rate of the best sample as text."""
    unit = "rate_bytes" if "rate_bytes" in rate else "rate_flops"
    return figure_text({unit: rate["burst"]})


def text_of(body: dict[str, Any]) -> str:
    """Return the sustained rates and their bursts, one per line, and the balance."""
    lines = [f"{one['name']:<13} {figure_text(one):>13}  burst {_burst_text(one)}" for one in body["rates"]]
    balance = body["balance"]["flops_per_byte"]
    lines.append(f"{'balance':<13} {three_digits(balance)} {body['rates'][0]['name']} flops per byte read")
    return "\n".join(lines) + "\n"
