"""The verbs by name. The module of a verb is imported only if a command line needs its flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from mxpeak.errors import UsageError

#: The groups of the help, in the order of printing. Groups of extensions follow.
GROUPS = ("Run", "Results", "Machine", "Plan", "Other")


class Verb(NamedTuple):
    """A verb of the command line. It is a named tuple, because importing `dataclasses` would slow down `--help`.

    name      name that the user types after `mxpeak`
    group     group of the help that lists it
    module    module with a function `add_flags(parser)`, which adds the flags, the description and the examples, and
              sets the default of `action` to the function that runs the verb
    summary   line of the help
    configs   "module:class" of each option class whose MXPEAK_* variables the verb reads
    """

    name: str
    group: str
    module: str
    summary: str
    configs: tuple[str, ...] = ()

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Import the module of the verb, and add the flags of the verb to the parser."""
        import_module(self.module).add_flags(parser)


#: Every verb, in the order of the help.
VERBS: dict[str, Verb] = {}


def register(verb: Verb) -> None:
    """Add a verb to the command line, its help and its completion."""
    if verb.name in VERBS:
        raise ValueError(f"the verb {verb.name} is already registered; use another name")
    VERBS[verb.name] = verb


def verbs_by_group() -> dict[str, list[str]]:
    """Return the names of the verbs by group of the help."""
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for verb in VERBS.values():
        groups.setdefault(verb.group, []).append(verb.name)
    return groups


def import_extensions(environ: Mapping[str, str]) -> None:
    """Import the modules in MXPEAK_IMPORT, which register benchmarks, verbs, generators and broadcasts."""
    for name in filter(None, environ.get("MXPEAK_IMPORT", "").split(",")):
        try:
            import_module(name)
        except ImportError as error:
            raise UsageError(
                f"MXPEAK_IMPORT: cannot import {name}: {error}; use modules that Python can import"
            ) from None


for _verb in (
    Verb("run", "Run", "mxpeak.cli.run", "run one benchmark or all of them"),
    Verb("resume", "Run", "mxpeak.cli.resume", "continue a run from its newest checkpoint"),
    Verb("history", "Results", "mxpeak.verbs.compare.history", "list past runs and scans"),
    Verb("compare", "Results", "mxpeak.verbs.compare.command", "compare two runs or two scans"),
    Verb("baseline", "Results", "mxpeak.verbs.compare.baseline", "store a reference for compare and scan"),
    Verb("report", "Results", "mxpeak.verbs.report", "write an HTML page or a table of results"),
    Verb("doctor", "Machine", "mxpeak.verbs.doctor", "show hardware, software and missing packages"),
    Verb("peak", "Machine", "mxpeak.verbs.peak", "measure matrix-multiply and memory speed (10 s)"),
    Verb(
        "scan",
        "Machine",
        "mxpeak.verbs.scan.command",
        "find slow or faulty nodes",
        configs=("mxpeak.verbs.scan.config:ScanConfig", "mxpeak.verbs.scan.config:ScanOutput"),
    ),
    Verb("tune", "Machine", "mxpeak.verbs.tune.command", "find the fastest settings for this machine"),
    Verb("plan", "Plan", "mxpeak.verbs.predict.plan", "choose N, NB, grid and broadcast, and predict the rate"),
    Verb("simulate", "Plan", "mxpeak.verbs.predict.simulate", "predict a run on another machine"),
    Verb("job", "Plan", "mxpeak.verbs.jobs.command", "print a job script for Slurm, PBS, Flux or Kubernetes"),
    Verb("slurm", "Plan", "mxpeak.verbs.jobs.slurm", "print a Slurm job script (job --for slurm)"),
    Verb("study", "Other", "mxpeak.verbs.study.command", "reproduce experiments of the HPL-MxP and HPG-MxP papers"),
    Verb("completion", "Other", "mxpeak.cli.completion", "print a shell completion script"),
    Verb("help", "Other", "mxpeak.cli.help", "explain exit codes, settings and submissions"),
):
    register(_verb)
