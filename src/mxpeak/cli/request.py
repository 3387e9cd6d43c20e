"""Read a benchmark's settings from flags, MXPEAK_* variables, --config and --dat, with the origin of each value."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mxpeak.bench.registry import BENCHMARKS, Benchmark, load
from mxpeak.cli.config_file import read_config, read_text, values_for
from mxpeak.cli.registry import VERBS
from mxpeak.configs.run import CI_FORMATS, OutputConfig, RunConfig
from mxpeak.errors import UsageError
from mxpeak.options import Option, Run, Setting, internal_names, options, parsed_by, resolve, run_of, suggestion

#: Settings of one layout, which a scaling study with several layouts does not take from `mxpeak tune`.
OF_A_LAYOUT = ("ranks", "threads", "grid", "P", "Q", "node_grid", "nx", "ny", "nz", "npx", "npy", "npz")
#: Variables that do not set an option, such as MXPEAK_CONFIG.
OTHER_VARIABLES = (
    *("CONFIG", "DAT", "CACHE_DIR", "GPU_AWARE_MPI", "IMPORT", "NODE"),
    *("STARTED_BY", "EXIT_CODE_FILE", "SIGNAL_FILE", "COLUMNS"),
)


@dataclass(frozen=True, kw_only=True)
class RunRequest(Run[RunConfig]):
    """A benchmark to run, with its configuration and its output options.

    from_dat   whether an input file was read
    begun      time at which the command line was read
    runs_all   whether the command line runs all benchmarks
    notes      notes that are printed before the run
    of_ranks   number of ranks of this run in a scaling study; None without a study
    """

    benchmark: Benchmark
    output: OutputConfig
    from_dat: bool
    begun: datetime
    runs_all: bool = False
    notes: list[str] = field(default_factory=list)
    of_ranks: int | None = None

    @property
    def own_format(self) -> str:
        """Return the value of --format for the benchmark's own report; empty if it has no such report."""
        return self.benchmark.report.format if self.benchmark.report else ""

    @property
    def stdout_format(self) -> str:
        """Return the format on stdout: the value of --format, the format that a .dat file requests, or text."""
        if self.output.format is not None:
            return self.output.format
        return self.own_format if self.from_dat and self.config.report_to == "stdout" else "text"

    @property
    def report_name(self) -> str:
        """Return the file name of the benchmark's own report; empty if it has no such report."""
        if self.benchmark.report is None:
            return ""
        given = "" if self.config.report_to in ("stdout", "stderr") else Path(self.config.report_to).name
        name = Path(given or self.benchmark.report.file.format(self.begun))
        return name.name if self.of_ranks is None else f"{name.stem}-{self.of_ranks}ranks{name.suffix}"


def add_options(parser: argparse.ArgumentParser, config: type, metavars: Mapping[str, str] | None = None) -> None:
    """Add a flag for each option of a config class to the help group of the option; `metavars` sets placeholders."""
    groups: dict[str, Any] = {str(group.title): group for group in parser._action_groups}
    for o in options(config):
        group = groups.setdefault(o.group, parser.add_argument_group(o.group))
        kind: dict[str, Any] = {"metavar": (metavars or {}).get(o.name, o.metavar)}
        if isinstance(o.default, bool):
            kind = {"action": "store_const", "const": "yes"}
        group.add_argument(*o.flags, dest=o.name, default=argparse.SUPPRESS, help=_help(o), **kind)
        if o.aliases:
            parser.add_argument(*o.aliases, dest=o.name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **kind)


def _help(o: Option) -> str:
    """Return the help of an option with its default. Options without help text are hidden."""
    if not o.help:
        return argparse.SUPPRESS
    if o.default is None or isinstance(o.default, bool) or "(default" in o.help:
        return o.help
    default = ",".join(map(str, o.default)) if isinstance(o.default, tuple) else str(o.default)
    return f"{o.help} (default: {default.replace('%', '%%')})"


def requests(args: argparse.Namespace, environ: Mapping[str, str]) -> list[RunRequest]:
    """Return one request per benchmark from the flags, the variables and the files that the command line names."""
    names = list(BENCHMARKS) if args.benchmark == "all" else [args.benchmark]
    check_variables(environ)
    config_file = args.config or environ.get("MXPEAK_CONFIG")
    form = BENCHMARKS[names[0]].input if len(names) == 1 else None
    dat_file = getattr(args, "dat", None) or (environ.get("MXPEAK_DAT") if form else None)
    file = read_config(config_file, names) if config_file else {}
    dat = load(form.reader)(read_text(dat_file, "--dat", errors="replace"), dat_file) if form and dat_file else None
    wanted = [_request(BENCHMARKS[name], vars(args), environ, file, dat) for name in names]
    if len(names) > 1 and wanted[0].config.study is not None:
        raise UsageError(f"--scaling-study runs only one benchmark; use one of {', '.join(names)} instead of all")
    wanted = [_with_tuned(_with_counts(request), alone=len(names) == 1) for request in wanted]
    if len(names) > 1:  # --min-gflops applies only to benchmarks that count flops
        floorless = {"min_gflops": None}
        wanted = [each if each.benchmark.in_flops else each.with_values(floorless, "default") for each in wanted]
    _check(args.benchmark, wanted)
    return [replace(request, runs_all=args.benchmark == "all") for request in wanted]


def variables() -> dict[str, list[Option]]:
    """Return the name of each MXPEAK_* variable with the options that it sets; OTHER_VARIABLES set none."""
    configs: list[type] = [OutputConfig, *(benchmark.config for benchmark in BENCHMARKS.values())]
    configs += [load(name) for verb in VERBS.values() for name in verb.configs]
    known: dict[str, list[Option]] = {f"MXPEAK_{name}": [] for name in OTHER_VARIABLES}
    for o in (o for config in configs for o in options(config)):
        known.setdefault(o.variable, []).append(o)
    return known


def check_variables(environ: Mapping[str, str]) -> None:
    """Raise a UsageError if an MXPEAK_* environment variable is unknown."""
    known = variables()
    for name in environ:
        if name.startswith("MXPEAK_") and name not in known:
            raise UsageError(f"the variable {name} is unknown; {suggestion(name, known, 'mxpeak help settings')}")


def check_unused_variables(environ: Mapping[str, str]) -> None:
    """Raise a UsageError for an unknown MXPEAK_* variable, or a value that no option of this name accepts.

    Commands without settings use this check; `run`, `scan` and `resume` check the values of their own options.
    """
    check_variables(environ)
    for name, known in variables().items():
        refusals = [error for o in known if environ.get(name) and (error := _refusal(o, environ[name])) is not None]
        if refusals and len(refusals) == len(known):
            raise refusals[0]


def _refusal(o: Option, text: str) -> UsageError | None:
    """Return the error of an option for the value of its variable, or None if the option accepts the value."""
    try:
        parsed_by(o.parse, text, o.variable)
    except UsageError as error:
        return error
    return None


def _request(
    benchmark: Benchmark,
    typed: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Mapping[str, Any],
    dat: Mapping[str, Any] | None,
) -> RunRequest:
    """Return the request of one benchmark from the flags, the variables, the --config file and the input file."""
    values = values_for(benchmark.name, file)
    shown = {o.name for o in options(OutputConfig)}
    output = resolve(OutputConfig, typed, environ, {k: v for k, v in values.items() if k in shown})
    settings = resolve(benchmark.config, typed, environ, {k: v for k, v in values.items() if k not in shown}, dat)
    settings = {
        name: Setting(s.value, benchmark.input.name) if benchmark.input and s.origin == "HPL.dat" else s
        for name, s in benchmark.config.settle(settings).items()
    }
    run = run_of(benchmark.config, settings)
    return RunRequest(
        config=run.config,
        origins=run.origins,
        benchmark=benchmark,
        output=run_of(OutputConfig, output).config,
        from_dat=dat is not None,
        begun=datetime.now(),
    )


def _with_counts(request: RunRequest) -> RunRequest:
    """Return the request with the rank counts of its scaling study; without a study, reject --ranks-list."""
    config = request.config
    if config.study is None:
        if config.ranks_list is not None:
            text = ",".join(map(str, config.ranks_list))
            raise UsageError(f"--ranks-list {text} applies only to scaling studies; add --scaling-study weak or strong")
        return request
    from mxpeak.bench.scaling import series_settings

    return request.with_choices(series_settings(request.benchmark.name, config))


def _with_tuned(request: RunRequest, *, alone: bool) -> RunRequest:
    """Return the request with values of `mxpeak tune` in place of defaults.

    If `alone`, the ranks and threads may also be tuned values, provided that both are unset.
    """
    if request.output.tuned == "no":
        return request
    from mxpeak.runtime.tuned import with_tuned

    fixed = () if request.config.study is None else OF_A_LAYOUT
    tuned, notes = with_tuned(request.benchmark.name, request, alone=alone, fixed=fixed)
    return replace(tuned, notes=notes)


def _check(name: str, wanted: Sequence[RunRequest]) -> None:
    """Raise a UsageError for flags that conflict, have no effect without another flag, or are not supported."""
    output = wanted[0].output
    output.check_progress()
    if output.dry_run and output.json is not None:
        raise UsageError("--dry-run does not produce a result to write; remove --json")
    if output.json == "-" and output.format is not None:
        raise UsageError(
            f"--json - and --format {output.format} both write to stdout; use --json FILE, or remove --format"
        )
    if output.format not in (None, "text", *CI_FORMATS) and any(
        request.own_format != output.format for request in wanted
    ):
        own = f"text or {wanted[0].own_format}" if len(wanted) == 1 and wanted[0].own_format else "text"
        fits = f"{own}, or {' or '.join(CI_FORMATS)}"
        raise UsageError(f"mxpeak run {name} does not support --format {output.format}; use {fits}")
    for each in wanted:
        if each.origins.get("every") == "flag" and getattr(each.config, "checkpoint", None) is None:
            raise UsageError("--every writes no checkpoints without a folder; add --checkpoint DIR, or remove --every")
    if any(request.config.min_share is not None and request.config.warmup == "none" for request in wanted):
        raise UsageError(
            "--min-share needs the measured limit, but --warmup none skips this measurement; remove one of the "
            "two flags"
        )


def settings_table(run: Run[Any]) -> str:
    """Return a table of the values that are not defaults, each with its origin, without internal settings."""
    hidden = internal_names(type(run.config))
    rows = [
        (name, "-" if getattr(run.config, name) is None else _shown(getattr(run.config, name)), origin)
        for name, origin in run.origins.items()
        if origin != "default" and name not in hidden
    ]
    widths = [max((len(row[k]) for row in rows), default=0) for k in range(2)]
    return "".join(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}\n" for name, value, origin in rows)


def _shown(value: Any) -> str:
    """Return a value as text; the items of a list are separated by commas."""
    return ", ".join(map(_shown, value)) if isinstance(value, tuple) else str(value)
