"""`mxpeak job`: print a job script with comments that explain its settings. The job is not submitted."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.errors import ExitCode, UsageError
from mxpeak.layout.host_list import hosts_of
from mxpeak.options import count_text, integer, quoted
from mxpeak.verbs.jobs.job import OTHERS, Job, scheduler_name, time_limit

if TYPE_CHECKING:
    from mxpeak.cli.session import Session
    from mxpeak.configs.run import PlaceConfig

EXAMPLES = """\
examples:
  mxpeak job hpl --for slurm --nodes 4 --ranks-per-node 2 > job.sh
  mxpeak job hpl-mxp --for flux --nodes 128 --gpus-per-node 4 --partition pbatch > job.sh
  mxpeak job scan --for pbs --nodes 2 --ranks-per-node 8 --cpus-per-node 64 > scan.sh
  mxpeak job hpcg --for kubernetes --nodes 2 --gpus-per-node 8 --image IMAGE -- --rt 30m
"""
SLURM_EXAMPLES = """\
examples:
  mxpeak slurm hpl --nodes 4 --ranks-per-node 2 > job.sh
  mxpeak slurm hpl-mxp --nodes 128 --gpus-per-node 4 --partition gpu > job.sh
  mxpeak slurm hpcg --nodes 2 --gpus-per-node 8 -- --rt 30m > job.sh
"""
AFTER_EXAMPLES = """
Flags after -- go to the benchmark or command. The shell of the job replaces
variables such as $SLURM_JOB_ID.
"""
#: The launchers of each scheduler, the default first.
LAUNCHERS = {
    "slurm": ("srun", "mpiexec", "torchrun"),
    "pbs": ("mpiexec",),
    "flux": ("flux",),
    "kubernetes": ("mpirun",),
}
#: The resource of a GPU in Kubernetes by default.
GPU = "nvidia.com/gpu"
#: Largest index of a job array in Slurm: MaxArraySize - 1, where slurm.conf limits MaxArraySize to 4,000,001.
LAST_INDEX = 4_000_000
#: Flags that a scheduler does not have, each with a replacement.
MISSING = {
    "slurm": {"image": "remove --image", "claim": "remove --claim"},
    "pbs": {
        "qos": "use --partition QUEUE, because a queue of PBS sets the quality of service",
        "exclude": "use --nodelist with the other hosts",
        "image": "remove --image",
        "claim": "remove --claim",
    },
    "flux": {
        "qos": "use --partition QUEUE",
        "reservation": "use --partition QUEUE",
        "array": "submit the script several times, or use flux bulksubmit",
        "cpus_per_rank": "use -- --threads C, because mxpeak divides the cores of the whole nodes of the job",
        "image": "remove --image",
        "claim": "remove --claim",
    },
    "kubernetes": {
        "qos": "use --partition QUEUE, the queue of Kueue",
        "account": "use --partition QUEUE, the queue of Kueue",
        "reservation": "use --nodelist",
        "array": "submit the manifest several times under different names",
    },
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `job`."""
    add_job_flags(parser)


def add_job_flags(parser: argparse.ArgumentParser, scheduler: str | None = None) -> None:
    """Add the flags of a job, and --for if no scheduler is given."""
    manifest = "" if scheduler else ", or a manifest for Kubernetes"
    parser.description = f"Print a commented job script{manifest}. mxpeak does not submit it."
    parser.epilog = (SLURM_EXAMPLES if scheduler == "slurm" else EXAMPLES) + AFTER_EXAMPLES
    names = [*BENCHMARKS, *OTHERS]
    parser.add_argument(
        "benchmark", choices=names, metavar="BENCHMARK", help=f"benchmark or command: {', '.join(names)}"
    )
    if scheduler is None:
        parser.add_argument(
            "--for",
            dest="scheduler",
            choices=tuple(LAUNCHERS),
            required=True,
            metavar="{" + ",".join(LAUNCHERS) + "}",
            help="scheduler that runs the job",
        )
    else:
        parser.set_defaults(scheduler=scheduler)
    resources, queue = parser.add_argument_group("resources"), parser.add_argument_group("queue")
    whole = partial(resources.add_argument, metavar="K")
    whole("--nodes", type=integer(1), default=1, help="number of nodes (default: 1)")
    whole("--ranks-per-node", type=integer(1, 4096), help="ranks per node (default: one per GPU, or 1 without GPUs)")
    whole("--cpus-per-node", type=integer(1, 65536), help="cores of a node that jobs may use (default: not set)")
    whole("--cpus-per-rank", type=integer(1, 65536), help="cores per rank (default: an equal share of the node)")
    whole("--gpus-per-node", type=integer(1, 64), help="GPUs per node (default: none)")
    resources.add_argument(
        "--time", type=time_limit, default=3600, metavar="HH:MM:SS", help="time limit of the job (default: 01:00:00)"
    )
    launchers = sorted({name for names in LAUNCHERS.values() for name in names})
    resources.add_argument(
        "--launcher",
        choices=launchers,
        metavar="NAME",
        help="launcher for Slurm: srun, mpiexec or torchrun (default: srun)",
    )
    named = partial(queue.add_argument, type=scheduler_name)
    named("--partition", metavar="NAME", help="partition or queue of the job")
    named("--account", metavar="NAME", help="account to charge")
    named("--qos", metavar="NAME", help="quality of service, for Slurm")
    named("--constraint", metavar="EXPR", help="features of the nodes; KEY=VALUE for Kubernetes")
    named("--reservation", metavar="NAME", help="reservation to use, for Slurm and PBS")
    hosts = partial(queue.add_argument, type=hosts_of, metavar="HOSTS")
    hosts("--nodelist", default=[], help="hosts to use, such as n[03,07-09]")
    hosts("--exclude", default=[], help="hosts to avoid, such as those of mxpeak scan")
    queue.add_argument("--array", type=_array, metavar="0-3", help="run the job once per index, for Slurm and PBS")
    if scheduler is None:
        pods = parser.add_argument_group("Kubernetes")
        pods.add_argument("--image", metavar="IMAGE", help="container image with mxpeak, an MPI and sshd")
        pods.add_argument(
            "--claim", type=_yaml_name, metavar="NAME", help="persistent volume claim for results (default: print JSON)"
        )
        pods.add_argument(
            "--gpu-resource", type=_yaml_name, default=GPU, metavar="NAME", help=f"resource of a GPU (default: {GPU})"
        )
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="flags of the benchmark or command")
    parser.set_defaults(action=job)


def _yaml_name(text: str) -> str:
    """Check a name that a manifest contains without quotes, and return it."""
    if not re.fullmatch(r"[A-Za-z0-9][\w./-]*", text):
        raise UsageError(f"{text!r} is not a name; use letters, digits, and the characters . / _ -")
    return text


def _array(text: str) -> str:
    """Check the indices of a job array, such as 0-3 or 0-7%2, and return them."""
    item = r"[0-9]+(-[0-9]+)?(:[0-9]+)?"
    if not re.fullmatch(rf"{item}(,{item})*(%[0-9]+)?", text) or any(len(k) > 18 for k in re.findall("[0-9]+", text)):
        raise UsageError(f"{quoted(text)} is not a list of indices; use, for example, 0-3 or 0-7%2")
    for first, last, step in re.findall(r"([0-9]+)-([0-9]+)(?::([0-9]+))?", text):
        if int(first) > int(last):
            raise UsageError(f"{first}-{last} is a decreasing range; use {last}-{first}")
        if step and int(step) == 0:
            raise UsageError(f"{first}-{last}:{step} has a step of 0; use a step of at least 1")
    return text


def _last_index(array: str) -> int:
    """Return the largest index in a list of indices that `_array` has checked."""
    indices = re.findall("[0-9]+", re.sub("[:%][0-9]+", "", array))
    return max(map(int, indices))


def job(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Print the job script on rank 0, and the warnings about it on stderr."""
    config = _command_config(args)
    described = _job(args, config.gpus_per_rank)
    _check_ranks(config, described)
    notes = _cautions(described, config, args.cpus_per_node)
    described = replace(described, notes=tuple(notes))
    if session.rank == 0:
        print(_text(described, args), end="")
        for note in notes:
            session.log(f"warning: {note}")
    return ExitCode.VALID


def _text(described: Job, args: argparse.Namespace) -> str:
    """Return the script or the manifest for the scheduler."""
    if args.scheduler == "kubernetes":
        from mxpeak.verbs.jobs.kubernetes import Cluster, kubernetes

        return kubernetes(described, Cluster(args.image, args.claim, args.gpu_resource))
    from mxpeak.verbs.jobs import batch_scripts

    scripts = {"slurm": batch_scripts.slurm_script, "pbs": batch_scripts.pbs_script, "flux": batch_scripts.flux_script}
    return scripts[args.scheduler](described)


def _job(args: argparse.Namespace, gpus_per_rank: int) -> Job:
    """Return the job that the flags describe; raise a UsageError for flags that contradict each other."""
    for name, instead in MISSING[args.scheduler].items():
        if getattr(args, name, None):
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {args.scheduler}; {instead}")
    if args.scheduler == "kubernetes" and not args.image:
        raise UsageError("--for kubernetes needs a container image with mxpeak, an MPI and sshd; use --image IMAGE")
    if args.scheduler == "slurm" and args.array and (last := _last_index(args.array)) > LAST_INDEX:
        raise UsageError(
            f"--array contains the index {last}, but Slurm accepts at most {LAST_INDEX:,}, and 1,000 by default; "
            "use a smaller index"
        )
    if args.scheduler == "pbs" and args.array and not re.fullmatch(r"\d+-\d+(:\d+)?(%\d+)?", args.array):
        raise UsageError(f"--array {args.array} is not a range, but PBS accepts only ranges; use, for example, 0-3")
    launchers = LAUNCHERS[args.scheduler]
    launcher = args.launcher or launchers[0]
    if launcher not in launchers:
        raise UsageError(f"--launcher {launcher} does not apply to {args.scheduler}; use {' or '.join(launchers)}")
    if args.scheduler == "pbs" and args.partition and args.reservation:
        raise UsageError("a reservation of PBS is a queue, but --partition names another queue; use only --reservation")
    if args.nodelist and len(args.nodelist) != args.nodes and args.scheduler != "kubernetes":
        raise UsageError(
            f"--nodelist contains {count_text(len(args.nodelist), 'host')}, but the job has "
            f"{count_text(args.nodes, 'node')}; use --nodes {len(args.nodelist)}"
        )
    ranks = _ranks_per_node(args, gpus_per_rank)
    return Job(
        benchmark=args.benchmark,
        nodes=args.nodes,
        ranks_per_node=ranks,
        cpus_per_rank=_cpus_per_rank(args, ranks),
        gpus_per_node=args.gpus_per_node,
        gpus_per_rank=gpus_per_rank,
        time_s=args.time,
        queue=args.partition,
        account=args.account,
        qos=args.qos,
        constraint=args.constraint,
        reservation=args.reservation,
        array=args.array,
        hosts=tuple(args.nodelist),
        exclude=tuple(args.exclude),
        launcher=launcher,
        flags=tuple(args.flags),
    )


def _ranks_per_node(args: argparse.Namespace, gpus_per_rank: int) -> int:
    """Return --ranks-per-node, or one rank per group of GPUs that a rank uses; raise a UsageError if GPUs stay idle."""
    gpus: int | None = args.gpus_per_node
    ranks: int | None = args.ranks_per_node
    if not gpus and gpus_per_rank > 1:
        raise UsageError(f"--devices-per-rank {gpus_per_rank} needs GPUs; use --gpus-per-node {gpus_per_rank}")
    if not gpus:
        return ranks or 1
    if gpus_per_rank == 1:
        if (ranks or gpus) % gpus:
            raise UsageError(
                f"--ranks-per-node {ranks} is not a multiple of --gpus-per-node {gpus}, but each GPU needs the same "
                f"number of ranks; use --ranks-per-node {gpus}"
            )
        return ranks or gpus
    each = ranks or max(1, gpus // gpus_per_rank)
    if each * gpus_per_rank != gpus:
        fits = (
            f"--ranks-per-node {gpus // gpus_per_rank}" if gpus % gpus_per_rank == 0 else "another --devices-per-rank"
        )
        raise UsageError(
            f"--ranks-per-node {each} with --devices-per-rank {gpus_per_rank} needs {each}*{gpus_per_rank} = "
            f"{each * gpus_per_rank} GPUs, but --gpus-per-node is {gpus}; use {fits}"
        )
    return each


def _cpus_per_rank(args: Any, ranks: int) -> int | None:
    """Return the cores of each rank: --cpus-per-rank, or an equal share of --cpus-per-node."""
    node: int | None = args.cpus_per_node
    each: int | None = args.cpus_per_rank
    if node is None:
        if each is None and args.scheduler == "pbs":
            raise UsageError("PBS assigns one core by default; use --cpus-per-node C with the cores of a node")
        return each
    needed = ranks * (each or 1)
    if needed > node:
        raise UsageError(
            f"{ranks} ranks per node with {each or 1} cores each need {ranks}*{each or 1} = {needed} cores, but "
            f"--cpus-per-node is {node}; use "
            + (f"--cpus-per-rank {node // ranks}" if ranks <= node else f"--ranks-per-node {node}")
        )
    return each or node // ranks


def _cautions(described: Job, config: PlaceConfig, cpus_per_node: int | None) -> list[str]:
    """Return warnings about cores that no rank uses."""
    ranks, each = described.ranks_per_node, described.cpus_per_rank
    notes = []
    if cpus_per_node and each and ranks * each < cpus_per_node:
        idle = cpus_per_node - ranks * each
        notes.append(
            f"{ranks} ranks with {each} cores each leave {idle} of the {cpus_per_node} cores of a node idle; use "
            f"another --ranks-per-node or --cpus-per-rank"
        )
    if each and config.threads is not None and config.threads != each and not described.gpus_per_node:
        kind = "leave" if config.threads < each else "oversubscribe"
        count = each - config.threads if config.threads < each else each
        rest = f"{count} of the {each} cores of each rank idle" if kind == "leave" else f"the {each} cores of each rank"
        notes.append(f"--threads {config.threads} {kind} {rest}; use --threads {each}, or remove --threads")
    return notes


def _command_config(args: argparse.Namespace) -> PlaceConfig:
    """Return the settings of the command that the job runs.

    Raise the errors of this command now, before the job waits in a queue.
    """
    from mxpeak.cli.main import parsed

    verb = [args.benchmark] if args.benchmark in OTHERS else ["run", args.benchmark]
    words = [os.path.expandvars(word) for word in args.flags]
    if any(word in ("-h", "--help") for word in words):
        raise UsageError(f"a job cannot run --help; use mxpeak {' '.join(verb)} --help")
    typed = parsed([*verb, *words])
    if getattr(typed, "study", None) is not None and getattr(typed, "ranks", None) is None:
        typed.ranks = str(_job(args, 1).ranks)  # by default, a study uses the cores of this host
    return _config(args.benchmark, typed)


def _check_ranks(config: PlaceConfig, described: Job) -> None:
    """Raise a UsageError if the ranks, the grid or the cases of the command do not match the ranks of the job."""
    from mxpeak.bench.norms.config import NormsConfig
    from mxpeak.configs.lu import LuConfig

    if config.ranks not in (None, described.ranks):
        raise UsageError(
            f"--ranks {config.ranks} contradicts the job, which starts {described.nodes}*{described.ranks_per_node} = "
            f"{described.ranks} ranks; remove --ranks"
        )
    _check_grid(config, described)
    if isinstance(config, LuConfig | NormsConfig) and config.n is not None:
        cases = len(list(config.cases(described.ranks)))  # raises the errors of impossible cases
        if isinstance(config, LuConfig):
            config.check_checkpoint(cases)


def _config(benchmark: str, args: argparse.Namespace) -> PlaceConfig:
    """Return the settings from the flags of `run`, `scan` or `peak`, without the variables and files of this host."""
    if benchmark == "scan":
        from mxpeak.verbs.scan.command import scan_settings

        return scan_settings(args, {}).config
    if benchmark == "peak":
        from mxpeak.configs.run import PlaceConfig
        from mxpeak.options import resolve

        return PlaceConfig(**{name: each.value for name, each in resolve(PlaceConfig, vars(args), {}, {}).items()})
    from mxpeak.cli.request import requests

    args.tuned = getattr(args, "tuned", "no")
    return requests(args, {})[0].config


def _check_grid(config: Any, described: Job) -> None:
    """Raise a UsageError if the process grid or the node grid does not match the ranks of the job."""
    from mxpeak.configs.grid import GridConfig
    from mxpeak.layout.grid import ProcessGrid

    if not isinstance(config, GridConfig):
        if described.ranks % config.least_ranks:
            raise UsageError(
                f"--npx, --npy and --npz need a multiple of {config.least_ranks} ranks, but the job starts "
                f"{described.ranks}; use other values"
            )
        return
    for P, Q in config.grids(described.ranks):
        ProcessGrid(P, Q, config.order, config.node_grid)
    p, q = config.node_grid or (1, 1)
    if described.ranks_per_node % (p * q):
        raise UsageError(
            f"--node-grid {p}x{q} needs {p}*{q} = {p * q} ranks per node, but the job has "
            f"{described.ranks_per_node}; use --ranks-per-node {p * q}"
        )
