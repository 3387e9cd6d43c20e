"""`mxpeak slurm`: the alias of `mxpeak job --for slurm`."""

from __future__ import annotations

import argparse

from mxpeak.verbs.jobs.command import add_job_flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `slurm`."""
    add_job_flags(parser, "slurm")
