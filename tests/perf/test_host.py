"""Test host facts from invented /proc and /sys trees, and from this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mxpeak.perf import host
from tests.support.machine import MEMINFO, machine, put

GiB = 2**30


def test_a_two_socket_machine_is_read_whole(tmp_path):
    facts = host.host_facts(machine(tmp_path), affinity=range(16))
    assert facts["cpu_model"] == "Invented 9000"
    assert facts["kernel"] == "6.1.0-invented"
    assert (facts["sockets"], facts["physical_cores"], facts["logical_cores_allowed"]) == (2, 8, 16)
    assert facts["numa_nodes"] == [{"node": 0, "cores": [0, 1, 2, 3]}, {"node": 1, "cores": [4, 5, 6, 7]}]
    assert (facts["l2_bytes"], facts["l3_bytes"]) == (512 * 1024, 32 * 2**20)
    assert (facts["avx2"], facts["avx512"]) == (True, False)
    assert (facts["memory_total_bytes"], facts["memory_available_bytes"]) == (GiB, GiB // 2)
    assert facts["governor"] == "performance"


def test_facts_are_plain_data_for_json_on_this_machine_too(tmp_path):
    for facts in (host.host_facts(), host.host_facts(tmp_path), host.software_facts(), host.environment()):
        json.dumps(facts, allow_nan=False)


def test_without_proc_and_sys_facts_are_none_and_nothing_fails(tmp_path):
    facts = host.host_facts(tmp_path, affinity=[0])
    unknown = ("cpu_model", "sockets", "physical_cores", "numa_nodes", "l2_bytes", "l3_bytes", "avx2", "avx512")
    assert {facts[name] for name in unknown} == {None}
    assert {facts[name] for name in ("memory_total_bytes", "memory_available_bytes", "governor")} == {None}


def test_hardware_threads_of_a_core_count_once(tmp_path):
    assert host.one_core_each(machine(tmp_path), range(16)) == list(range(8))
    assert host.one_core_each(tmp_path, [3, 11, 12]) == [3, 12]


def kinds_of(folder: Path, speeds: Sequence[int], name: str = "cpu_capacity", small: str = "") -> Path:
    """Write a processor whose cores have these speeds, with one hardware thread each."""
    files = {f"sys/devices/system/cpu/cpu{core}/{name}": str(speed) for core, speed in enumerate(speeds)}
    return put(folder, files | ({"sys/devices/cpu_atom/cpus": small} if small else {}))


def test_cores_of_slower_kinds_compute_only_if_this_raises_the_rate(tmp_path):
    """Equal shares: the rate is the number of cores times the speed of the slowest."""
    few = kinds_of(tmp_path / "few", [1024] * 4 + [400] * 4)  # 4·1 against 8·0.39
    assert host.core_kinds(few, range(8)) == [([0, 1, 2, 3], 1.0), ([4, 5, 6, 7], 400 / 1024)]
    assert host.one_core_each(few, range(8)) == [0, 1, 2, 3]
    assert host.idle_cores(few, range(8)) == [4, 5, 6, 7]
    many = kinds_of(tmp_path / "many", [600] * 6 + [1024] * 2)  # 2·1 against 8·0.59
    assert host.one_core_each(many, range(8)) == list(range(8))
    assert host.idle_cores(many, range(8)) == []


def test_slow_cores_alone_are_all_used(tmp_path):
    root = kinds_of(tmp_path, [1024] * 4 + [400] * 4)
    assert host.one_core_each(root, [5, 6]) == [5, 6]
    assert host.idle_cores(root, [5, 6]) == []


def with_model(root: Path, model: str) -> Path:
    return put(root, {"proc/cpuinfo": f"model\t\t: {model}\nmodel name\t: Invented\n"})


def test_small_cores_of_intel_multiply_at_half_the_rate_and_favored_cores_are_no_kind(tmp_path):
    name = "cpufreq/cpuinfo_max_freq"
    hybrid = with_model(
        kinds_of(tmp_path / "hybrid", [5_500_000, 5_300_000] * 4 + [4_000_000] * 8, name, small="8-15"), "183"
    )
    assert [len(kind.cores) for kind in host.core_kinds(hybrid, range(16))] == [8, 8]
    assert host.one_core_each(hybrid, range(16)) == list(range(8))  # 8·1 against 16·0.36
    facts = host.host_facts(hybrid, affinity=range(16))
    assert facts["core_kinds"][1] == {"cores": list(range(8, 16)), "speed": pytest.approx(2.0 / 5.5)}
    later = with_model(kinds_of(tmp_path / "later", [5_100_000] * 4 + [3_700_000] * 4, name, small="4-7"), "189")
    assert host.one_core_each(later, range(8)) == list(range(8))  # 8·0.73 against 4·1
    same = kinds_of(tmp_path / "same", [5_500_000, 5_000_000], name)
    assert host.host_facts(same, affinity=range(2))["core_kinds"] is None


@pytest.fixture
def mac(monkeypatch):
    """Return the answers of a notebook with eight fast and two slow cores."""
    answers = {
        "sysctl": "machdep.cpu.brand_string: Apple M1 Pro\nhw.packages: 1\nhw.physicalcpu: 10\n"
        "hw.perflevel0.physicalcpu: 8\nhw.perflevel1.physicalcpu: 2\nhw.perflevel0.l2cachesize: 12582912\n",
        "vm_stat": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:   1000.\n"
        "Pages active:  5000.\nPages inactive:  2000.\nPages speculative: 24.\nPages purgeable:  0.\n",
    }
    monkeypatch.setattr(host.darwin, "_output", lambda program, *_: answers[program])
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    monkeypatch.delattr(os, "sched_getaffinity")
    host.darwin._sysctl.cache_clear()
    yield
    host.darwin._sysctl.cache_clear()


@pytest.mark.usefixtures("mac")
def test_facts_of_macos_come_from_its_programs():
    facts = host.host_facts()
    assert (facts["cpu_model"], facts["sockets"], facts["physical_cores"]) == ("Apple M1 Pro", 1, 10)
    assert (facts["l2_bytes"], facts["l3_bytes"]) == (12 * 2**20, None)
    assert facts["memory_available_bytes"] == 3024 * 16384
    assert host.one_core_each() == list(range(8))
    assert host.idle_cores() == [8, 9]
    assert facts["core_kinds"][1]["speed"] < 0.5
    json.dumps(facts, allow_nan=False)


def test_a_cgroup_v2_limit_binds_total_and_available_memory(tmp_path):
    level = "sys/fs/cgroup/job/"
    put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job/step\n",
            level + "memory.max": str(GiB // 4),
            level + "memory.current": str(GiB // 8),
            level + "memory.stat": f"anon 1\ninactive_file {GiB // 16}\n",
            level + "step/memory.max": "max\n",
        },
    )
    assert host.total_memory_bytes(tmp_path) == GiB // 4
    assert host.available_memory_bytes(tmp_path) == GiB // 4 - GiB // 16


def test_a_cgroup_v1_limit_binds_too_and_its_no_limit_does_not(tmp_path):
    level = "sys/fs/cgroup/memory/"
    put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/slurm/job_7\n0::/\n",
            level + "memory.limit_in_bytes": "9223372036854771712\n",
            level + "slurm/job_7/memory.limit_in_bytes": str(GiB // 2),
            level + "slurm/job_7/memory.usage_in_bytes": "4096",
        },
    )
    assert host.total_memory_bytes(tmp_path) == GiB // 2
    assert host.available_memory_bytes(tmp_path) == GiB // 2 - 4096


def test_in_a_container_that_does_not_see_its_cgroup_path_the_limit_of_the_mount_holds(tmp_path):
    put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/docker/abc\n",
            "sys/fs/cgroup/memory.max": str(GiB // 8),
            "sys/fs/cgroup/memory.current": str(GiB),
        },
    )
    assert host.total_memory_bytes(tmp_path) == GiB // 8
    assert host.available_memory_bytes(tmp_path) == 0  # in use beyond the limit is not negative memory


def test_a_limit_above_the_memory_does_not_add_memory(tmp_path):
    put(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(8 * GiB),
            "sys/fs/cgroup/memory.current": "0",
        },
    )
    assert host.total_memory_bytes(tmp_path) == GiB
    assert host.available_memory_bytes(tmp_path) == GiB // 2


def test_kernel_lists_of_cores_are_read():
    assert host.core_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert host.core_list("") == []


def test_without_affinity_masks_all_cores_are_allowed(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert host.allowed_cores() == list(range(os.cpu_count() or 1))


def test_this_machine_has_memory_and_cores():
    assert host.total_memory_bytes() > 0
    assert len(host.allowed_cores()) >= 1
    assert 1 <= len(host.one_core_each()) <= len(host.allowed_cores())


def test_software_versions_are_found_and_absent_packages_are_none(monkeypatch):
    monkeypatch.setattr(host, "PACKAGES", ("numpy", "no-such-package-as-this"))
    facts = host.software_facts()
    assert facts["numpy"]
    assert facts["no-such-package-as-this"] is None
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["mxpeak"] == sys.modules["mxpeak"].__version__


def test_only_listed_variables_are_recorded_and_never_secrets():
    environ = {
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
        "MXPEAK_NB": "192",
        "HOME": "/x",
        "AWS_SECRET_ACCESS_KEY": "s",
        "MXPEAK_STARTED_BY": "login1:4711",
        "MXPEAK_TOKEN": "s",
        "OMPI_MCA_auth_secret": "s",
        "NOT_OMP_X": "1",
        "omp_x": "1",
    }
    assert host.environment(environ=environ) == {
        "MXPEAK_NB": "192",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "2",
    }
    assert host.environment(allow=("HOME",), environ=environ) == {"HOME": "/x"}


def test_cores_are_grouped_by_the_last_cache_that_they_share(tmp_path):
    assert host.core_groups(machine(tmp_path), range(16)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert host.core_groups(machine(tmp_path), [1, 2, 9]) == [[1], [2]]
    assert host.core_groups(tmp_path / "nothing", [3, 4]) == [[3, 4]]
