"""Manifests for Kubernetes: an MPIJob of Kubeflow's MPI operator, kubeflow.org/v2beta1."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from textwrap import indent

from mxpeak.errors import UsageError
from mxpeak.verbs.jobs.job import Job

#: Folder of the persistent volume in the pods.
RESULTS = "/results"

MANIFEST = """\
# Submit with kubectl create -f FILE, and read the output with kubectl logs -f job/{name}-launcher.
# The cluster needs Kubeflow's MPI operator, and the image needs mxpeak, an MPI library and sshd.
{notes}apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: {name}
{labels}spec:
  # Number of ranks of a worker.  A worker has a node to itself.
  slotsPerWorker: {job.ranks_per_node}
  # OpenMPI, MPICH or Intel: the MPI of the image, to which MPI for Python is linked.
  mpiImplementation: OpenMPI
  # mpirun needs the addresses of all workers.
  launcherCreationPolicy: WaitForWorkersReady
  runPolicy:
    cleanPodPolicy: Running
    activeDeadlineSeconds: {job.time_s}
    # A run that failed is not repeated, because its result would be lost.
    backoffLimit: 0
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: launcher
            image: {image}
            env:
            # Open MPI refuses to start as root without these variables.
            - name: OMPI_ALLOW_RUN_AS_ROOT
              value: "1"
            - name: OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
              value: "1"
            command: ["/bin/bash", "-c"]
            args:
            - |
              # mxpeak binds each rank, so mpirun must not.
              exec mpirun -n {job.ranks} --bind-to none mxpeak {command}
    Worker:
      replicas: {job.nodes}
      template:
        metadata:
          labels:
            mxpeak-job: {name}
        spec:
          # One worker per node, because a rate is that of whole nodes.
          affinity:
            podAntiAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
              - labelSelector:
                  matchLabels:
                    mxpeak-job: {name}
                topologyKey: kubernetes.io/hostname
{placement}          containers:
          - name: worker
            image: {image}
{resources}            securityContext:
              capabilities:
                # Network adapters register memory, which must stay in place.
                add: ["IPC_LOCK"]
            volumeMounts:
            - name: shared-memory
              mountPath: /dev/shm
{mount}          volumes:
          # MPI and NCCL exchange messages within a node through shared memory, of which a pod has only 64 MiB.
          - name: shared-memory
            emptyDir:
              medium: Memory
{claim}"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts of a manifest that batch schedulers do not have.

    image          container image with mxpeak, an MPI and sshd
    claim          persistent volume claim for the results; without a claim, the result is printed
    gpu_resource   name under which the device plugin offers GPUs
    """

    image: str
    claim: str | None = None
    gpu_resource: str = "nvidia.com/gpu"


def kubernetes(job: Job, cluster: Cluster) -> str:
    """Return the manifest of a job as commented YAML."""
    # the name of the launcher's pod differs between two jobs
    command = job.command(RESULTS, "$HOSTNAME", logs=cluster.claim is None, excluded="hostfile")
    labels = f"  labels:\n    # The queue of Kueue.\n    kueue.x-k8s.io/queue-name: {job.queue}\n" if job.queue else ""
    mount = f"            - name: results\n              mountPath: {RESULTS}\n"
    claim = f"          - name: results\n            persistentVolumeClaim:\n              claimName: {cluster.claim}\n"
    return MANIFEST.format(
        job=job,
        name=job.name,
        image=json.dumps(cluster.image),
        command=command,
        notes="".join(f"# {note}\n" for note in job.notes),
        labels=labels,
        placement=_node_affinity(job) + _node_selector(job.constraint),
        resources=_resources(job, cluster),
        mount=mount if cluster.claim else "",
        claim=claim if cluster.claim else "",
    )


def _node_affinity(job: Job) -> str:
    """Return the terms that restrict a worker to some hosts, or keep it away from some hosts."""
    terms = [("In", job.hosts), ("NotIn", job.exclude)]
    lines = [
        f"- key: kubernetes.io/hostname\n  operator: {operator}\n  values: {json.dumps(list(hosts))}\n"
        for operator, hosts in terms
        if hosts
    ]
    if not lines:
        return ""
    head = "nodeAffinity:\n  requiredDuringSchedulingIgnoredDuringExecution:\n    nodeSelectorTerms:\n"
    return indent(head + "    - matchExpressions:\n" + indent("".join(lines), "      "), " " * 12)


def _node_selector(constraint: str | None) -> str:
    """Return the labels that a node must have, from a list key=value,..."""
    if constraint is None:
        return ""
    labels = {}
    for term in constraint.split(","):
        key, equals, value = term.partition("=")
        if not equals or not re.fullmatch(r"[\w./-]+", key) or not re.fullmatch(r"[\w.-]+", value):
            raise UsageError(
                f"--constraint {term} is not a label of a node; use KEY=VALUE, such as nvidia.com/gpu.product=H200"
            )
        labels[key] = value
    lines = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in labels.items())
    return indent(f"nodeSelector:\n{lines}", " " * 10)


def _resources(job: Job, cluster: Cluster) -> str:
    """Return the cores and GPUs of a worker."""
    limits = {}
    if job.cpus_per_rank:
        limits["cpu"] = job.ranks_per_node * job.cpus_per_rank
    if job.gpus_per_node:
        limits[cluster.gpu_resource] = job.gpus_per_node
    text = "".join(f"    {name}: {number}\n" for name, number in limits.items())
    if not text:
        return ""
    fabric = "    # Add the resource of the RDMA device plugin, for example rdma/ib: 1.\n" if job.nodes > 1 else ""
    return indent(f"resources:\n  limits:\n{fabric}{text}", " " * 12)
