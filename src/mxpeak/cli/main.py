"""Parse the command line, run the verb and return the exit code.

This module does not import large modules, so that `--help` is fast even on nine thousand nodes.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import textwrap
from contextlib import suppress
from functools import cache, partial
from typing import Any, NoReturn

from mxpeak import __version__
from mxpeak.cli import help
from mxpeak.cli.registry import VERBS, import_extensions
from mxpeak.cli.session import Interrupted, Session, interruptible
from mxpeak.errors import NO_SPACE, ExitCode, MxpeakError, UsageError
from mxpeak.runtime.parent_watch import call_at_end, parent_pid, record_crashes, restore_signals, write_exit_code

#: Values of flags that begin with a dash, such as -5%, -1e9 and -64,128. No flag begins with a dash and a digit.
NEGATIVE = re.compile(r"-(\.?\d|inf$|nan$)")
NO_ARGUMENTS = ["run", "all", "--quick"]
#: Commands that read the variables on rank 0 for all ranks, and commands that work despite invalid variables.
READS_VARIABLES, IGNORES_VARIABLES = ("run", "resume", "scan"), ("help", "completion")

EPILOG = """\
examples:
  mxpeak doctor
  mxpeak run hpl -N 8000 --ranks 4
  mpiexec -n 4 mxpeak run hpl --dat HPL.dat

sources of a setting, in order of precedence:
  flag, variable MXPEAK_<NAME>, --config FILE.toml, --dat FILE, mxpeak tune, default
Variables set flags of run, resume, scan and peak only.

"""


def _with_help(message: str, verb: str) -> str:
    """Return an error message with a pointer to the help of the verb."""
    return f"{message} See {verb} --help" if message.endswith("?") else f"{message}; see {verb} --help"


def _shortened(text: str) -> str:
    return text if len(text) <= 1000 else f"{text[:1000]}…"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageErrors and prints its help only on rank 0.

    Flags cannot be abbreviated, and the line breaks of the examples in the help are kept.
    """

    def __init__(self, **settings: Any):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, add_help=False, **settings
        )
        self._negative_number_matcher = NEGATIVE
        self.add_argument("-h", "--help", action=help.HelpAction, help="show the common flags (-h) or all (--help)")

    def format_help(self) -> str:
        """Return the help with all flags in groups, without a usage block that would list the flags again."""
        if self.prog == "mxpeak":
            return help.full_overview(self, EPILOG + help.EXIT_CODES)
        self.usage = help.usage(self)
        self.description = textwrap.fill(self.description or "", help.WIDTH)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError. If arguments are missing, the error shows the values of the argument, or the usage."""
        start = "the following arguments are required: "
        if message.startswith(start):
            missing = message.removeprefix(start)
            message = f"{missing} {'are' if ', ' in missing else 'is'} missing; use {self._instead_of(missing)}"
        raise UsageError(_with_help(_shortened(message), self.prog))

    def _instead_of(self, missing: str) -> str:
        """Return the values of a missing argument, or the usage if it has no fixed set of values."""
        for action in self._actions:
            if action.choices and missing in (action.metavar, *action.option_strings):
                values = f"one of {', '.join(map(str, action.choices))}"
                return f"{missing} with {values}" if action.option_strings else values
        return help.usage(self)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Parse the value of a flag; prefix errors with the name of the flag.

        Without this method, argparse replaces the message of every ValueError by the same text.
        """
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, UsageError):
                name = "/".join(action.option_strings) or action.metavar or action.dest
                raise UsageError(f"{name}: {error.__context__}") from None
            raise

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise a UsageError for an unknown verb or benchmark, with a suggestion."""
        if action.choices is not None and value not in action.choices:
            from mxpeak.bench.registry import BENCHMARKS
            from mxpeak.cli.did_you_mean import of_choice

            message = of_choice(str(value), [str(choice) for choice in action.choices], list(BENCHMARKS))
            raise argparse.ArgumentError(action, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version, on rank 0 only."""
        if Session().rank == 0:
            super()._print_message(message, file)


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line. If `verb` is given, only the flags of this verb are added."""
    selected = tuple(VERBS) if verb is None else (verb,) if verb in VERBS else ()
    benchmarks = sys.modules.get("mxpeak.bench.registry")
    return _parser_of(selected, tuple(VERBS.values()), tuple(benchmarks.BENCHMARKS.values()) if benchmarks else ())


@cache
def _parser_of(selected: tuple[str, ...], *registered: tuple[object, ...]) -> argparse.ArgumentParser:
    """Build the parser. The result is cached for each selection and each set of registered verbs and benchmarks."""
    top = Parser(
        prog="mxpeak",
        description="Run HPL, HPL-MxP, HPG-MxP, HPCG and matrix-norm benchmarks, validate the results and explain "
        "them. Without a command, mxpeak runs every benchmark at a small size in about a minute, or two on first use, "
        "like mxpeak run all --quick.",
        epilog="Try:  mxpeak doctor      mxpeak run hpl -h      mxpeak help exit-codes\n",
    )
    top.add_argument("--version", action="version", version=f"mxpeak {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="COMMAND", required=True, parser_class=Parser)
    for name, verb in VERBS.items():
        of_verb = verbs.add_parser(name, help=verb.summary)
        if name in selected:
            verb.add_flags(of_verb)
    return top


def parsed(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; raise a UsageError for unknown arguments, with a pointer to the help of the verb."""
    cut = argv.index("--") if "--" in argv else len(argv)
    top = parser(argv[0] if argv else "")
    args, unknown = top.parse_known_args(argv[:cut])
    args.full_parser = parser
    if hasattr(args, "flags"):
        unknown += args.flags
        args.flags = argv[cut + 1 :]  # flags of another verb, for the job script
    else:
        unknown += argv[cut + 1 :]
    if unknown:
        from mxpeak.cli.did_you_mean import flags_after, flags_elsewhere, of_flags

        words = [word for word in (args.verb, getattr(args, "benchmark", None)) if word]
        verb = " ".join(["mxpeak", *words])
        meant = of_flags(unknown, flags_after(top, words), flags_elsewhere(top, words))
        if hasattr(args, "flags") and not meant:
            meant = f"; write the flags of {words[-1]} after --"
        raise UsageError(_with_help(f"{verb} does not accept {_shortened(' '.join(unknown))}{meant}", verb))
    return args


def completed(argv: list[str]) -> list[str]:
    """Return the command line, completed by the default verb and flags if it contains no verb.

    `baseline RESULT` is short for `baseline set RESULT`.
    """
    if not argv:
        return NO_ARGUMENTS
    if len(argv) == 2 and argv[0] == "baseline" and argv[1] not in ("set", "from") and not argv[1].startswith("-"):
        return ["baseline", "set", argv[1]]
    if argv[0].startswith("-") and argv[0] not in ("-h", "--help", "--version"):
        return [*NO_ARGUMENTS[:2], *([] if "--quick" in argv else NO_ARGUMENTS[2:]), *argv]
    return argv


def _run_verb(argv: list[str], session: Session) -> int:
    """Run the verb and return its exit code. The output is flushed here, so that a full disk raises an error."""
    try:
        args = parsed(argv)
        _check_variables(args.verb, session)
        code = int(args.action(args, argv, session))
    except SystemExit as answered:  # raised after help or the version is printed
        code = int(answered.code or 0)
    sys.stdout.flush()
    return code


def _check_variables(verb: str, session: Session) -> None:
    """Raise a UsageError for an unknown MXPEAK_* variable or an invalid value; `doctor` prints it as a warning."""
    if verb in (*READS_VARIABLES, *IGNORES_VARIABLES) or not any(name.startswith("MXPEAK_") for name in os.environ):
        return
    from mxpeak.cli.request import check_unused_variables

    try:
        check_unused_variables(os.environ)
    except UsageError as error:
        if verb != "doctor":
            raise
        session.log(f"mxpeak: warning: {error}")


def _discard_stdout() -> None:
    """Connect stdout to the null device, because Python flushes the rest of its buffer when it exits."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def main(argv: list[str] | None = None, session: Session | None = None) -> int:
    """Run a command line and return its exit code, which is the same on every rank."""
    argv = completed(sys.argv[1:] if argv is None else argv)
    session = Session() if session is None else session
    try:
        with interruptible(session):
            if (pid := parent_pid()) is not None:
                call_at_end(pid, partial(session.parent_died, pid))
                record_crashes()
            import_extensions(os.environ)
            return _run_verb(argv, session)
    except MxpeakError as error:
        return session.refuse(f"mxpeak: error: {error}", int(error.exit_code))
    except BrokenPipeError:
        _discard_stdout()  # buffered output has no reader
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno is None and str(error).startswith("mxpeak "):  # there is no folder for compiled kernels
            return session.fail(str(error), ExitCode.RESOURCE)
        if error.errno not in NO_SPACE:
            return session.crash()
        if error.filename is None:
            _discard_stdout()
        return session.refuse(f"mxpeak: error: {error.strerror}: {error.filename or 'stdout'}", ExitCode.RESOURCE)
    except MemoryError as error:
        text = f"mxpeak: error: out of memory: {error}; use a smaller -N, or a smaller --mem"
        return session.end(session.refuse(text, ExitCode.RESOURCE))
    except Interrupted as interrupted:
        if session.stalled is None:  # every rank reports a stall itself
            session.log(f"mxpeak: {interrupted}")
        return session.end_with_grace(interrupted.code)
    except Exception as error:
        from mxpeak.kernels.choose import device_failure

        failure = device_failure(error)
        return session.crash() if failure is None else session.fail(failure, ExitCode.RESOURCE)


def entry() -> None:
    """Run `mxpeak` and exit with its exit code. This is the entry point of the console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (it lives as long as the process)
        getattr(sys, name).reconfigure(errors="backslashreplace")  # the name of a path may not be UTF-8
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]  # os.path.expanduser would return /.cache for ~/.cache
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns about the choice of cuSOLVER in each run
    session = Session()
    code = main(session=session)
    if code:
        session.abort_unjoined(code)
    restore_signals()
    if mpi := sys.modules.get("mxpeak.comm.transports.mpi"):
        session.watch_exit()
        mpi.finalize()
    if code:
        write_exit_code(code)
    if torchdist := sys.modules.get("mxpeak.comm.transports.torchdist"):
        torchdist.depart(code)
    sys.exit(code)
