"""Job scripts for Slurm, PBS and Flux."""

from __future__ import annotations

from mxpeak.layout.host_list import host_list
from mxpeak.verbs.jobs.job import OTHERS, WARNING_S, Job, clock

#: The folder for the results of a job.
FOLDER = "mxpeak-out"

SCRIPT = """\
#!/bin/bash
{directives}

set -euo pipefail
{begin}# Load the site's MPI and activate the environment that has mxpeak, for example:
#   module load openmpi && source "$HOME/mxpeak/bin/activate"

# Store compiled kernels on each node's own disk, not on a file system that thousands of ranks share.
export MXPEAK_CACHE_DIR="${{TMPDIR:-/tmp}}/mxpeak-cache-$USER"

{launch}
"""
EXCLUSIVE = "# Exclude other jobs from these nodes, because a rate is that of whole nodes."
WARNED = f"# SIGTERM {WARNING_S} s before the end, so that mxpeak can write its results so far."
BY_MPIEXEC = f"""{WARNED}
# B: only to the batch shell, which mpiexec replaces.  mpiexec passes SIGTERM on to its ranks.
# Open MPI ends them a second later, unless its parameter odls_base_sigkill_timeout is larger."""
UNBOUND = "# mxpeak binds each rank to its cores, but keeps a binding by the launcher.  --dry-run on a node shows them."


def _script(job: Job, directives: list[str], begin: str, launch: list[str]) -> str:
    """Return the text of a script. The commands of `begin` run first, and those of `launch` start the ranks."""
    notes = [f"# {note}" for note in job.notes]
    if job.benchmark in OTHERS:
        begin += f"mkdir -p {FOLDER}\n"
    return SCRIPT.format(directives="\n".join([*notes, *directives]), begin=begin, launch="\n".join(launch))


def _lines(prefix: str, values: dict[str, object]) -> list[str]:
    """Return a directive for each key, without those whose value is None or empty."""
    return [f"{prefix}{key}{value}" for key, value in values.items() if value not in (None, "")]


def slurm_script(job: Job) -> str:
    """Return the job script for Slurm."""
    directives = _lines(
        "#SBATCH --",
        {
            "job-name=": job.name,
            "nodes=": job.nodes,
            "ntasks-per-node=": job.ranks_per_node,
            "cpus-per-task=": job.cpus_per_rank,
            "gpus-per-node=": job.gpus_per_node,
            "time=": clock(job.time_s),
            "partition=": job.queue,
            "account=": job.account,
            "qos=": job.qos,
            "constraint=": job.constraint,
            "reservation=": job.reservation,
            "nodelist=": host_list(job.hosts),
            "exclude=": host_list(job.exclude),
            "array=": job.array,
        },
    )
    if job.cpus_per_rank:
        directives += ["# A CPU is a core, not a hardware thread.", "#SBATCH --threads-per-core=1"]
    directives += [EXCLUSIVE, "#SBATCH --exclusive"]
    # Without B, Slurm signals only job steps, but mpiexec and its ranks on the first node belong to the batch step.
    shell = job.launcher == "mpiexec"
    directives += [BY_MPIEXEC if shell else WARNED, f"#SBATCH --signal={'B:' * shell}TERM@{WARNING_S}"]
    launch = {"srun": _srun, "mpiexec": _mpiexec, "torchrun": _torchrun}[job.launcher]
    return _script(job, directives, "", launch(job, job.command(FOLDER, "$SLURM_JOB_ID")))


def _gpus_seen(job: Job) -> str:
    """Return a comment about the GPUs of a rank."""
    if job.gpus_per_rank == 1:
        return "# Each rank sees all GPUs of its node and selects one, with the cores near that GPU."
    return f"# Each rank sees all GPUs of its node and selects {job.gpus_per_rank}."


def _srun(job: Job, command: str) -> list[str]:
    """Return the lines that start the ranks with srun."""
    flags = [f"--nodes={job.nodes}", f"--ntasks={job.ranks}", f"--ntasks-per-node={job.ranks_per_node}"]
    lines = []
    if job.cpus_per_rank:
        lines.append("# Since Slurm 22.05 srun does not inherit --cpus-per-task, so repeat it.")
        flags.append(f"--cpus-per-task={job.cpus_per_rank}")
    lines.append(UNBOUND)
    flags.append("--cpu-bind=none")
    if job.gpus_per_node:
        lines.append(_gpus_seen(job))
        flags.append("--gpu-bind=none")
    return [*lines, f"srun {' '.join(flags)} \\", f"  mxpeak {command}"]


def _mpiexec(job: Job, command: str) -> list[str]:
    """Return the lines that start the ranks with mpiexec of Open MPI, MPICH or Intel MPI, which replaces the shell."""
    return [
        "# mpiexec finds the nodes of the job; it must belong to the MPI that MPI for Python uses.",
        "# mxpeak binds each rank, so mpiexec must not.  With Cray's mpiexec, use --cpu-bind none.",
        f"exec mpiexec -n {job.ranks} --bind-to none mxpeak {command}",
    ]


def _torchrun(job: Job, command: str) -> list[str]:
    """Return the lines that start one torchrun per node, which starts the ranks of the node."""
    cores = f" --cpus-per-task={job.ranks_per_node * job.cpus_per_rank}" if job.cpus_per_rank else ""
    return [
        "# One torchrun per node starts its ranks, which connect to the first node.  mxpeak binds them to cores:",
        "# srun would bind torchrun, and so all ranks of a node, to the cores of one task.",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun --nodes={job.nodes} --ntasks={job.nodes} --ntasks-per-node=1{cores} --cpu-bind=none \\",
        f"  torchrun --nnodes={job.nodes} --nproc-per-node={job.ranks_per_node} \\",
        '  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" \\',
        f"  -m mxpeak {command} --comm torch",
    ]


def pbs_script(job: Job) -> str:
    """Return the job script for PBS Professional and OpenPBS."""
    assert job.cpus_per_rank is not None
    chunk = f":ncpus={job.ranks_per_node * job.cpus_per_rank}:mpiprocs={job.ranks_per_node}"
    chunk += f":ngpus={job.gpus_per_node}" if job.gpus_per_node else ""
    chunk += f":{job.constraint}" if job.constraint else ""
    select = "+".join(f"1:host={host}{chunk}" for host in job.hosts) or f"{job.nodes}{chunk}"
    directives = _lines(
        "#PBS -",
        {
            "N ": job.name,
            "l select=": select,
            "l walltime=": clock(job.time_s),
            "q ": job.reservation or job.queue,
            "A ": job.account,
            "J ": job.array,
        },
    )
    directives += [EXCLUSIVE, "#PBS -l place=scatter:exclhost"]
    begin = 'cd "$PBS_O_WORKDIR"\n'
    return _script(job, directives, begin, _mpiexec(job, job.command(FOLDER, "$PBS_JOBID", excluded="hostfile")))


def flux_script(job: Job) -> str:
    """Return the job script for Flux."""
    hosts, exclude = host_list(job.hosts), host_list(job.exclude)
    terms = [job.constraint, f"host:{hosts}" if hosts else None, f"-host:{exclude}" if exclude else None]
    requires = " ".join(f"({term})" if "|" in term else term for term in terms if term)
    directives = _lines(
        "# flux: --",
        {
            "job-name=": job.name,
            "nodes=": job.nodes,
            "time-limit=": f"{job.time_s}s",
            "queue=": job.queue,
            "bank=": job.account,
            "requires=": f'"{requires}"' if requires else None,
        },
    )
    directives += [EXCLUSIVE, "# flux: --exclusive", WARNED, f"# flux: --signal=TERM@{WARNING_S}s"]
    begin = (
        "# The environment of a Flux script does not contain the identifier of its job.\n"
        'JOB_ID=$(flux job id --to=f58plain "$(flux getattr jobid)")\n\n'
    )
    flags = [f"--nodes={job.nodes}", f"--tasks-per-node={job.ranks_per_node}", "--exclusive"]
    flags += ["-o cpu-affinity=off", "-o gpu-affinity=off"]
    lines = [UNBOUND, *([_gpus_seen(job)] if job.gpus_per_node else [])]
    launch = [*lines, f"flux run {' '.join(flags)} \\", f"  mxpeak {job.command(FOLDER, '$JOB_ID')}"]
    return _script(job, directives, begin, launch)
