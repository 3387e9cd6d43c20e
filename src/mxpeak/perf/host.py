"""Read facts about this host and its software from /proc and /sys, or from macOS. Unknown facts are None.

Most readers have a parameter `root`, the folder that contains proc/ and sys/, so that tests can describe other
machines.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mxpeak.perf import darwin

PACKAGES = (
    "numpy", "scipy", "numba", "llvmlite", "threadpoolctl", "ml_dtypes", "rich", "mpi4py", "mpich", "torch", "triton",
    "nvidia-ml-py", "matplotlib",
)  # fmt: skip

ALLOWED_VARIABLES = (
    "OMP_*", "OPENBLAS_*", "MKL_*", "BLIS_*", "NUMBA_*", "MPICH_*", "OMPI_*", "UCX_*", "NCCL_*", "RCCL_*", "CUDA_*",
    "HIP_*", "ROCR_*", "CUBLAS_*", "ROCBLAS_*", "NVIDIA_TF32_OVERRIDE", "PYTORCH_*", "TORCH_*", "TRITON_*",
    "SLURM_JOB_*", "SLURM_N*", "MXPEAK_*",
)  # fmt: skip
#: Variables that are never recorded, even if ALLOWED_VARIABLES contains them, because result files are shared.
SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|_KEY$|_AUTH", re.IGNORECASE)
#: Variables that do not affect results: communication with the parent process, the kernel cache, and torch's log.
OWN = (
    "MXPEAK_STARTED_BY",
    "MXPEAK_EXIT_CODE_FILE",
    "MXPEAK_SIGNAL_FILE",
    "MXPEAK_COLUMNS",
    "MXPEAK_CACHE_DIR",
    "TORCH_CPP_LOG_LEVEL",
)

#: Cores whose speeds differ by less are of one kind, because processors raise the clocks of their best cores.
SAME_KIND = 0.85
#: Speed of Intel's small cores at the same clock, by CPU model. Those of Alder, Raptor and Meteor Lake multiply half as
#: many numbers per cycle as their large cores; later ones multiply as many.
SMALL_CORES = dict.fromkeys(("151", "154", "183", "186", "191", "170", "172"), 0.5)

#: cgroup v1 writes a page-rounded 2^63 for "no limit"; no real limit is that large.
NO_LIMIT = 2**60


def host_facts(root: str | Path = "/", affinity: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the processor, usable cores, NUMA nodes, caches, memory, kernel and frequency governor of this host."""
    root = Path(root)
    allowed = allowed_cores(affinity)
    cpuinfo = _cpuinfo(root)
    flags = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    first = allowed[0] if allowed else 0
    facts = {
        "hostname": platform.node() or None,
        "kernel": text_in(root / "proc/sys/kernel/osrelease") or platform.release() or None,
        "architecture": platform.machine() or None,
        "cpu_model": cpuinfo.get("model name"),
        "sockets": _sockets(root),
        "physical_cores": _physical_cores(root),
        "core_kinds": _kinds_if_several(root, allowed),
        "logical_cores_allowed": len(allowed),
        "cores_allowed": allowed,
        "numa_nodes": _numa_nodes(root),
        "l2_bytes": _cache_bytes(root, first, 2),
        "l3_bytes": _cache_bytes(root, first, 3),
        "avx2": "avx2" in flags if flags else None,
        "avx512": "avx512f" in flags if flags else None,
        "memory_total_bytes": total_memory_bytes(root),
        "memory_available_bytes": available_memory_bytes(root),
        "governor": text_in(root / f"sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"),
    }
    return facts | (darwin.host_facts() if darwin.applies(root) else {})


def software_facts() -> dict[str, Any]:
    """Return the versions of Python, mxpeak and optional packages, without importing the packages; None if absent."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "mxpeak": getattr(sys.modules.get("mxpeak"), "__version__", None),
        **{name: _version(name) for name in PACKAGES},
    }


def environment(allow: Sequence[str] = ALLOWED_VARIABLES, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that match `allow` and may affect a result, except secrets."""
    environ = os.environ if environ is None else environ
    return {
        name: environ[name]
        for name in sorted(environ)
        if any(fnmatchcase(name, pattern) for pattern in allow) and name not in OWN and not SECRET.search(name)
    }


def allowed_cores(affinity: Sequence[int] | None = None) -> list[int]:
    """Return the logical cores that this process may use, or all cores on systems without affinity masks."""
    if affinity is not None:
        return sorted(affinity)
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def one_core_each(root: str | Path = "/", affinity: Sequence[int] | None = None) -> list[int]:
    """Return one allowed logical core per physical core, because a second hardware thread does not speed up GEMM.

    Of a processor with several kinds of cores, only the kinds with the best common rate are returned.
    """
    kinds = core_kinds(root, affinity)
    return sorted(core for kind in kinds[: _best_count(kinds)] for core in kind.cores)


def idle_cores(root: str | Path = "/", affinity: Sequence[int] | None = None) -> list[int]:
    """Return the cores of slower kinds that `one_core_each` omits."""
    kinds = core_kinds(root, affinity)
    return sorted(core for kind in kinds[_best_count(kinds) :] for core in kind.cores)


class CoreKind(NamedTuple):
    """Cores of about the same speed, one logical core per physical core, and their speed over that of the fastest."""

    cores: list[int]
    speed: float


def core_kinds(root: str | Path = "/", affinity: Sequence[int] | None = None) -> list[CoreKind]:
    """Return the allowed cores by kind, the fastest kind first; one kind if the system does not report speeds.

    A core belongs to a kind if its speed is at least SAME_KIND of that of the kind's fastest core.
    """
    root, seen, cores = Path(root), set[tuple[int, ...]](), list[int]()
    for core in allowed_cores(affinity):
        siblings = tuple(_siblings(root, core) or [core])
        if siblings not in seen:
            seen.add(siblings)
            cores.append(core)
    speeds = darwin.speeds(cores) if darwin.applies(root) else _speeds(root, tuple(cores))
    fastest = max(speeds.values(), default=1.0)
    kinds: list[CoreKind] = []
    for core in sorted(speeds, key=lambda core: -speeds[core]):
        speed = speeds[core] / fastest
        if kinds and speed >= SAME_KIND * kinds[-1].speed:
            kinds[-1].cores.append(core)
        else:
            kinds.append(CoreKind([core], speed))
    return [CoreKind(sorted(kind.cores), kind.speed) for kind in kinds]


def _kinds_if_several(root: Path, allowed: Sequence[int]) -> list[dict[str, Any]] | None:
    """Return the kinds of the allowed cores for the host facts, or None if there is only one."""
    kinds = core_kinds(root, allowed)
    return [kind._asdict() for kind in kinds] if len(kinds) > 1 else None


def _best_count(kinds: Sequence[CoreKind]) -> int:
    """Return how many of the fastest kinds give the best rate if all their cores get equal shares of the work."""
    counts = [sum(len(kind.cores) for kind in kinds[: i + 1]) for i in range(len(kinds))]
    rates = [count * kind.speed for count, kind in zip(counts, kinds)]
    return 1 + rates.index(max(rates)) if rates else 0


@cache
def _speeds(root: Path, cores: tuple[int, ...]) -> dict[int, float]:
    """Return the relative speeds of cores from the kernel's capacities, otherwise from clocks; equal if unknown."""
    system = root / "sys/devices/system/cpu"
    small = core_list(text_in(root / "sys/devices/cpu_atom/cpus") or "")
    of_small = SMALL_CORES.get(_cpuinfo(root).get("model", ""), 1.0)
    capacities = {core: _number(system / f"cpu{core}/cpu_capacity") for core in cores}
    if not all(capacities.values()):
        clocks = {core: _number(system / f"cpu{core}/cpufreq/cpuinfo_max_freq") for core in cores}
        known = all(clocks.values())
        capacities = {core: (clocks[core] if known else 1.0) * (of_small if core in small else 1.0) for core in cores}
    return capacities


def _number(path: Path) -> float:
    """Return the positive number in a file, or 0 if there is none."""
    text = text_in(path) or ""
    return float(text) if text.isdecimal() else 0.0


def core_groups(root: str | Path = "/", affinity: Sequence[int] | None = None) -> list[list[int]]:
    """Return the cores of `one_core_each`, grouped by third-level cache; one group if the caches are unknown."""
    groups: dict[str | None, list[int]] = {}
    for core in one_core_each(root, affinity):
        groups.setdefault(_cache(Path(root), core, 3, "shared_cpu_list"), []).append(core)
    return list(groups.values())


def core_list(text: str) -> list[int]:
    """Parse a core list of the kernel, such as 0-3,8,10-11, and return the core numbers."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return cores


def _cpu_directories(root: Path) -> list[Path]:
    return [path for path in _glob(root / "sys/devices/system/cpu", "cpu*") if re.fullmatch(r"cpu\d+", path.name)]


def _siblings(root: Path, core: int) -> list[int] | None:
    topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
    text = text_in(topology / "core_cpus_list") or text_in(topology / "thread_siblings_list")
    return core_list(text) if text else None


def _physical_cores(root: Path) -> int | None:
    siblings = {tuple(_siblings(root, int(path.name[3:])) or ()) for path in _cpu_directories(root)} - {()}
    return len(siblings) or None


def _sockets(root: Path) -> int | None:
    packages = {text_in(path / "topology/physical_package_id") for path in _cpu_directories(root)} - {None}
    return len(packages) or None


def _numa_nodes(root: Path) -> list[dict[str, Any]] | None:
    nodes = [path for path in _glob(root / "sys/devices/system/node", "node*") if path.name[4:].isdecimal()]
    numa = [
        {"node": int(path.name[4:]), "cores": core_list(text_in(path / "cpulist") or "")}
        for path in sorted(nodes, key=lambda path: int(path.name[4:]))
    ]
    return numa or None


def _cache(root: Path, core: int, level: int, fact: str) -> str | None:
    for index in _glob(root / f"sys/devices/system/cpu/cpu{core}/cache", "index*"):
        if text_in(index / "level") == str(level) and text_in(index / "type") != "Instruction":
            return text_in(index / fact)
    return None


def _cache_bytes(root: Path, core: int, level: int) -> int | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", _cache(root, core, level, "size") or "")
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]] if match else None


def _cpuinfo(root: Path) -> dict[str, str]:
    # All processors are assumed equal to the first.
    block = (text_in(root / "proc/cpuinfo") or "").split("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def total_memory_bytes(root: str | Path = "/") -> int | None:
    """Return the memory limit of this process in bytes: the smallest of the host's memory and the cgroup limits."""
    root = Path(root)
    host = _meminfo(root, "MemTotal")
    if host is None and root == Path("/"):
        host = _sysconf_bytes()
    return _least([host, *(limit for limit, _ in _cgroup_memory(root))])


def available_memory_bytes(root: str | Path = "/") -> int | None:
    """Return the bytes that this process can allocate now without swapping, within its cgroups.

    File cache that was not used recently counts as free, because the kernel drops it first.
    """
    root = Path(root)
    if darwin.applies(root):
        return darwin.available_memory_bytes()
    return _least([_meminfo(root, "MemAvailable"), *(max(0, limit - used) for limit, used in _cgroup_memory(root))])


def _cgroup_memory(root: Path) -> list[tuple[int, int]]:
    # limit and used bytes of each limited cgroup, from the cgroup of the process up to the root, because each limit is
    # enforced
    limits: list[tuple[int, int]] = []
    for line in (text_in(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup/memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for mount in mounts:
            limits.extend(entry for level in _levels(mount, path) if (entry := _cgroup_level(level, *names)))
    return limits


def _levels(mount: Path, path: str) -> list[Path]:
    # Inside a container, the path may be a path of the host that does not exist. Then only the root of the mount has
    # limits.
    own = mount / path.lstrip("/")
    return [own, *(parent for parent in own.parents if parent == mount or mount in parent.parents)]


def _cgroup_level(level: Path, limit_name: str, usage_name: str, cache_name: str) -> tuple[int, int] | None:
    limit = text_in(level / limit_name)
    if limit is None or not limit.isdecimal() or int(limit) >= NO_LIMIT:
        return None
    usage = int(text_in(level / usage_name) or 0)
    match = re.search(rf"^{cache_name} (\d+)$", text_in(level / "memory.stat") or "", re.MULTILINE)
    return int(limit), max(0, usage - (int(match[1]) if match else 0))


def _meminfo(root: Path, name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+) kB$", text_in(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _sysconf_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def text_in(path: Path) -> str | None:
    """Return the stripped text of a file in /proc or /sys, or None if the file is absent, empty or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def number_in(path: Path) -> int | None:
    """Return the number in a file, or None if the file does not contain a nonnegative integer."""
    text = text_in(path)
    return int(text) if text is not None and text.isdecimal() else None


def _glob(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern)) if directory.is_dir() else []


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


@cache
def _version(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed.

    The version is cached, because reading the metadata takes milliseconds.
    """
    from importlib import metadata  # imports the packages email and csv, which `mxpeak --help` does not need

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
