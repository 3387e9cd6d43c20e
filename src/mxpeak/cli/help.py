"""Help: a short screen for -h, every flag in groups for --help, and `mxpeak help TOPIC`."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

from mxpeak.cli.registry import verbs_by_group
from mxpeak.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

#: The flags that -h shows if a command has more flags than fit on the screen.
COMMON = (
    *("-N", "--nx", "--rt", "--nb", "--kind", "--structure", "--dtype", "--precision"),
    *("--ranks", "--threads", "--grid", "--device", "--quick", "--repeat", "--mem", "--dat", "--config"),
    *("--json", "--out", "--dry-run", "-v"),
    *("--machine", "--budget", "--unit", "--profile", "--links", "--rounds", "--tolerance", "--write-exclude"),
    *("--for", "--nodes", "--ranks-per-node", "--gpus-per-node", "--cpus-per-node", "--time", "--partition"),
)
#: The largest number of lines of -h, and of characters in a line.
LINES, WIDTH = 25, 80
#: The largest number of characters of a list of values that -h shows.
SHORT_LIST = 12
EXIT_CODES = """\
exit codes:
  0      valid
  1      bug in mxpeak
  2      wrong usage or impossible configuration; compare: nothing is comparable
  3      validation FAILED; scan: slow or wrong ranks, or undecided
  4      valid, but below --min-gflops, --min-share or --target; compare: slower
  5      not enough memory or disk, or no such device
  6      stopped: --target can no longer be reached, or a rank hung (--watchdog)
  128+n  ended by signal n
"""
SUBMIT = """\
submissions:
  TOP500    mxpeak run hpl --mem 80% --format hpl > HPL.out
  HPL-MxP   mxpeak run hpl-mxp --mem 80% --submit DIR
            DIR receives the fields of the form; the first line of submission.txt
            states whether the run is admissible.
  HPCG      mxpeak run hpcg --nx 104 --rt 30m
            upload HPCG-Benchmark_*.txt from the run's folder.
  HPG-MxP   mxpeak run hpg-mxp --nx 104 --rt 30m
The rules of each list: docs/explanation/list-rules.md
"""
VARIABLES = (
    "Variables set flags of run, scan and peak, and the files, output and hardware of",
    "resume. Other commands read only their own flags. All commands except doctor,",
    "help and completion reject unknown variables. run, scan and resume reject invalid",
    "values of their own flags; the others reject every invalid value.",
)
TOPICS = ("exit-codes", "settings", "submit")


class HelpAction(argparse.Action):
    """Prints the short help for -h, and the complete help for --help."""

    def __init__(self, option_strings: list[str], dest: str = argparse.SUPPRESS, **settings: Any):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> NoReturn:
        """Print the help and end the process."""
        parser._print_message(short_help(parser) if option_string == "-h" else parser.format_help(), sys.stdout)
        raise SystemExit(0)


def usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage line: the command, its arguments, and [OPTIONS] instead of a list of all flags."""
    words = [_operand(action) for action in parser._get_positional_actions()]
    passed_on = [word for word in words if "-- " in word]  # flags of another command
    return " ".join([parser.prog, *(word for word in words if word not in passed_on), "[OPTIONS]", *passed_on])


def _operand(action: argparse.Action) -> str:
    """Return a positional argument as the usage line shows it: optional in brackets, repeatable with dots."""
    name = str(action.metavar or action.dest.upper())
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


def short_help(parser: argparse.ArgumentParser) -> str:
    """Return help of at most 25 lines: usage, purpose, the common flags and an example."""
    if commands := commands_of(parser):
        return _commands(parser, commands, "\n".join((parser.epilog or "").rstrip().splitlines()[:3]))
    flags = [action for action in parser._actions if action.option_strings and not isinstance(action, HelpAction)]
    flags = [action for action in flags if action.help != argparse.SUPPRESS]
    match = re.search(r"^  (.+)$", parser.epilog or "", re.MULTILINE)
    example = [f"example: {match[1]}"] if match else []
    room = LINES - 7 - len(example)
    shown = flags if len(flags) <= room else [a for a in flags if set(a.option_strings) & set(COMMON)]
    shown = sorted(shown, key=_place)[:room]
    rows = [(_spelled(action), _short(parser, action)) for action in shown]
    column = min(30, max((len(flag) for flag, _ in rows), default=0) + 4)
    lines = [f"usage: {usage(parser)}", "", *_purpose(parser.description or ""), ""]
    lines += [f"  {flag:<{column - 2}}{text}".rstrip() for flag, text in rows]
    rest = len(flags) - len(shown)
    lines += ["", f"{rest} more flags: {parser.prog} --help" if rest else f"details: {parser.prog} --help"]
    return "\n".join([*lines, *example]) + "\n"


def _purpose(text: str) -> list[str]:
    """Return the first sentences of a description that fit in two lines, and at least one sentence."""
    first, *others = re.split(r"(?<=\.) ", " ".join(text.split()))
    for sentence in others:
        if len(textwrap.wrap(f"{first} {sentence}", WIDTH)) > 2:
            break
        first += f" {sentence}"
    return textwrap.wrap(first, WIDTH)


def _place(action: argparse.Action) -> int:
    """Return the index of a flag in COMMON, or the length of COMMON for another flag."""
    places = [COMMON.index(flag) for flag in action.option_strings if flag in COMMON]
    return min(places, default=len(COMMON))


def _spelled(action: argparse.Action) -> str:
    """Return the spellings of a flag, followed by its values, or by a placeholder if the list of values is long."""
    value = str(action.metavar or action.dest)
    value = action.dest.upper() if value.startswith("{") and len(value) > SHORT_LIST else value
    return ", ".join(action.option_strings) + (f" {value}" if action.nargs != 0 else "")


def _short(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of a flag without its default and its list of values."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    text = re.sub(r"\s*\(default.*\)$", "", text)
    return re.sub(r":(?: [^ ,]+,){3,}.*$", "", text)


def commands_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the help of each subcommand of a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {str(choice.dest): choice.help or "" for choice in action._choices_actions}
    return {}


def full_overview(parser: argparse.ArgumentParser, epilog: str) -> str:
    """Return the complete help of mxpeak itself."""
    return _commands(parser, commands_of(parser), epilog.rstrip())


def _commands(parser: argparse.ArgumentParser, commands: dict[str, str], epilog: str) -> str:
    """Return the usage, the subcommands with their help, and the epilog. The verbs of mxpeak are listed by group."""
    lines = [f"usage: {usage(parser)}", "", *textwrap.wrap(parser.description or "", WIDTH), ""]
    groups = verbs_by_group() if parser.prog == "mxpeak" else {"": list(commands)}
    for title, names in groups.items():
        for name in names:
            lines.append(f"{title if name == names[0] else '':<10}{name:<11} {commands[name]}".rstrip())
    return "\n".join([*lines, "", epilog]) + "\n"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `help`."""
    parser.description = "Explain a topic, or print all flags of a command."
    parser.epilog = "examples:\n  mxpeak help exit-codes\n  mxpeak help run hpl\n"
    parser.add_argument(
        "topic", nargs="*", metavar="TOPIC", help=f"topic ({', '.join(TOPICS)}) or command (default: mxpeak itself)"
    )
    parser.set_defaults(action=explain)


def explain(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Print a help topic, or the help of a command, on rank 0."""
    if session.rank == 0:
        print(_topic(args.full_parser(), args.topic), end="")
    return ExitCode.VALID


def _topic(top: argparse.ArgumentParser, words: list[str]) -> str:
    """Return the text of a help topic, or the help of the command that the words name."""
    if words == ["exit-codes"]:
        return EXIT_CODES
    if words == ["submit"]:
        return SUBMIT
    if words == ["settings"]:
        return _settings()
    parser = top
    for word in words:
        below = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
        if word not in below:
            raise UsageError(
                f"{' '.join(words)!r} is not a help topic; use {', '.join(TOPICS)}, or a command such as run hpl"
            )
        parser = below[word]
    return parser.format_help()


def _settings() -> str:
    """Return the table of all settings: flag, environment variable, and key in a --config file."""
    from mxpeak.bench.registry import BENCHMARKS
    from mxpeak.options import options

    by_name = {o.name: o for benchmark in BENCHMARKS.values() for o in options(benchmark.config)}
    lines = ["sources of a setting, in order of precedence:"]
    lines += [
        "  flag, variable MXPEAK_<NAME>, --config FILE.toml, --dat FILE, mxpeak tune, default",
        "",
        *VARIABLES,
        "",
    ]
    lines.append(f"{'flag':<24}{'variable':<26}key")
    ordered = sorted(by_name.values(), key=lambda o: o.name.lower())
    return "\n".join([*lines, *(f"{o.flags[-1]:<24}{o.variable:<26}{o.name}" for o in ordered)]) + "\n"
