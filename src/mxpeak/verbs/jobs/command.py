"""`mxpeak slurm`: print a Slurm job script with comments that explain its settings. The job is not submitted."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.did_you_mean import flags_after, of_flags
from mxpeak.errors import ExitCode, UsageError
from mxpeak.options import integer

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak slurm hpl --nodes 4 --ranks-per-node 2 > job.sh
  mxpeak slurm hpl-mxp --nodes 128 --ranks-per-node 8 --gpus-per-node 8 --partition gpu
  mxpeak slurm hpg-mxp --nodes 2 --launcher torchrun --gpus-per-node 4 -- --nx 256 --rt 30m

Arguments after -- go to mxpeak run. The command prints the script but does not submit it.
"""
LAUNCHERS = ("srun", "mpiexec", "torchrun")
#: Verbs that a job can run instead of a benchmark.
OTHERS = ("scan", "peak")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """The resources and the command of a Slurm job."""

    benchmark: str
    nodes: int
    ranks_per_node: int
    cores_per_rank: int | None
    gpus_per_node: int | None
    time: str
    partition: str | None
    account: str | None
    launcher: str
    flags: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """Return the number of ranks of the job."""
        return self.nodes * self.ranks_per_node


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `slurm`."""
    parser.description = "Print a commented Slurm job script. mxpeak does not submit it."
    parser.epilog = EXAMPLES
    names = [*BENCHMARKS, *OTHERS]
    parser.add_argument(
        "benchmark", choices=names, metavar="BENCHMARK", help=f"benchmark or command: {', '.join(names)}"
    )
    parser.add_argument("--nodes", type=integer(1), default=1, metavar="K", help="number of nodes (default: 1)")
    parser.add_argument(
        "--ranks-per-node",
        type=integer(1, 4096),
        metavar="R",
        help="ranks per node (default: one per GPU, or 1 without GPUs)",
    )
    parser.add_argument(
        "--cpus-per-rank",
        type=integer(1, 4096),
        metavar="C",
        help="cores per rank (default: an equal share of the node)",
    )
    parser.add_argument("--gpus-per-node", type=integer(1, 64), metavar="G", help="GPUs per node (default: none)")
    parser.add_argument(
        "--time", default="01:00:00", metavar="HH:MM:SS", help="time limit of the job (default: 01:00:00)"
    )
    parser.add_argument("--partition", metavar="NAME", help="partition of the job")
    parser.add_argument("--account", metavar="NAME", help="account to charge")
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="srun",
        metavar="NAME",
        help="launcher: srun, mpiexec or torchrun (default: srun)",
    )
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="arguments for mxpeak run")
    parser.set_defaults(action=slurm)


def slurm(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Print the Slurm job script on rank 0."""
    ranks = args.ranks_per_node or args.gpus_per_node or 1
    if args.gpus_per_node and ranks % args.gpus_per_node:
        raise UsageError(
            f"--ranks-per-node {ranks} is not a multiple of --gpus-per-node {args.gpus_per_node}, but each "
            f"GPU needs the same number of ranks; use --ranks-per-node {args.gpus_per_node}"
        )
    _check(args.full_parser(), args.benchmark, args.flags)
    job = SlurmJob(
        args.benchmark, args.nodes, ranks, args.cpus_per_rank, args.gpus_per_node, args.time, args.partition,
        args.account, args.launcher, tuple(args.flags),
    )  # fmt: skip
    if session.rank == 0:
        print(script(job), end="")
    return ExitCode.VALID


def _check(top: argparse.ArgumentParser, benchmark: str, flags: list[str]) -> None:
    """Raise a UsageError for flags that the command of the job does not accept, before the job waits in a queue."""
    verb = [benchmark] if benchmark in OTHERS else ["run", benchmark]
    accepted = flags_after(top, verb)
    named = {word: word.split("=")[0] if word.startswith("--") else word[:2] for word in flags}  # --nb=64, -N1000
    unknown = [word for word in flags if re.match(r"-[^\d.]", word) and named[word] not in accepted]
    if unknown:
        raise UsageError(f"mxpeak {' '.join(verb)} does not accept {' '.join(unknown)}{of_flags(unknown, accepted)}")


#: Template of the job script. An #SBATCH line without a value is omitted.
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=mxpeak-{job.benchmark}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node={job.ranks_per_node}
#SBATCH --cpus-per-task={job.cores_per_rank}
#SBATCH --gpus-per-node={job.gpus_per_node}
#SBATCH --time={job.time}
#SBATCH --partition={job.partition}
#SBATCH --account={job.account}
# Exclude other jobs from these nodes, because a rate is that of whole nodes.
#SBATCH --exclusive
# SIGTERM two minutes before the end, so that mxpeak can write its results so far.
#SBATCH --signal=TERM@120

set -euo pipefail
# Load the site's MPI and activate the environment that has mxpeak, for example:
#   module load openmpi && source "$HOME/mxpeak/bin/activate"

# Store compiled kernels on each node's own disk, not on a file system that thousands of ranks share.
export MXPEAK_CACHE_DIR="${{TMPDIR:-/tmp}}/mxpeak-cache-$USER"

{launch}
"""
MPIEXEC = """\
# mpiexec finds the nodes of the job; it must belong to the MPI that MPI for Python uses.
# mxpeak binds each rank, so Open MPI must not.
mpiexec -n {job.ranks} --bind-to none mxpeak {command}"""
TORCHRUN = """\
# One torchrun per node starts its ranks, which connect to the first node.  mxpeak binds them to cores:
# srun would bind torchrun, and so all ranks of a node, to the cores of one task.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --nodes={job.nodes} --ntasks={job.nodes} --ntasks-per-node=1{cores} --cpu-bind=none \\
  torchrun --nnodes={job.nodes} --nproc-per-node={job.ranks_per_node} \\
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" \\
  -m mxpeak {command} --comm torch"""


def script(job: SlurmJob) -> str:
    """Return the text of the job script; #SBATCH lines without a value are omitted."""
    lines = SCRIPT.format(job=job, launch=_launch(job)).splitlines(keepends=True)
    return "".join(line for line in lines if not re.fullmatch(r"#SBATCH --[\w-]+=(None)?\n", line))


def _launch(job: SlurmJob) -> str:
    """Return the lines of the job script that start the ranks with srun, mpiexec or torchrun."""
    words, own = [job.benchmark] if job.benchmark in OTHERS else ["run", job.benchmark], list(job.flags)
    given = {word.split("=")[0] for word in own}
    own += ["--device", "cuda"] if job.gpus_per_node and "--device" not in given else []
    command = " ".join([*words, *map(shlex.quote, own)])
    if job.benchmark not in OTHERS and "--out" not in given:
        command += f' --out "mxpeak-out/$SLURM_JOB_ID-{job.benchmark}"'
    if job.launcher == "mpiexec":
        return MPIEXEC.format(job=job, command=command)
    if job.launcher == "torchrun":
        cores = f" --cpus-per-task={job.ranks_per_node * job.cores_per_rank}" if job.cores_per_rank else ""
        return TORCHRUN.format(job=job, command=command, cores=cores)
    flags = [f"--nodes={job.nodes}", f"--ntasks={job.ranks}", f"--ntasks-per-node={job.ranks_per_node}"]
    lines = []
    if job.cores_per_rank:
        lines.append("# Since Slurm 22.05 srun does not inherit --cpus-per-task, so repeat it.")
        flags.append(f"--cpus-per-task={job.cores_per_rank}")
    lines.append("# mxpeak binds each rank to its cores, but keeps a binding by srun.  --dry-run on a node shows them.")
    flags.append("--cpu-bind=none")
    if job.gpus_per_node:
        rule = "rank r of a node uses GPU r, and cores near that GPU if Linux lists them."
        lines.append(f"# Each rank sees all GPUs: {rule}")
        flags.append("--gpu-bind=none")
    return "\n".join([*lines, f"srun {' '.join(flags)} \\", f"  mxpeak {command}"])
