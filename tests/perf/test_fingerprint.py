"""Test which changes of machine and software change the fingerprint."""

from __future__ import annotations

from pathlib import Path

from mxpeak.perf.fingerprint import blas_files, digest, gpu_models, machine_facts


def machine(root: Path, *, model: str = "Xeon", memory_kb: int = 16 * 2**20, cores: int = 2) -> Path:
    """Write the /proc and /sys files of a machine."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(f"processor : 0\nmodel name : {model}\nflags : fpu avx2 avx512f\n\n")
    (root / "proc/meminfo").write_text(f"MemTotal: {memory_kb} kB\nMemAvailable: {memory_kb // 2} kB\n")
    for core in range(cores):
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text("0\n")
    return root


def test_the_same_machine_and_software_have_the_same_fingerprint(tmp_path: Path) -> None:
    one, two = (machine_facts(machine(tmp_path / name), {"HOME": name}) for name in ("a", "b"))
    assert digest(one) == digest(two)
    assert one == two


def test_another_processor_core_memory_or_variable_is_another_fingerprint(tmp_path: Path) -> None:
    here = machine_facts(machine(tmp_path / "here"), {})
    others = [
        machine_facts(machine(tmp_path / "model", model="EPYC"), {}),
        machine_facts(machine(tmp_path / "cores", cores=4), {}),
        machine_facts(machine(tmp_path / "memory", memory_kb=64 * 2**20), {}),
        machine_facts(machine(tmp_path / "variable"), {"OPENBLAS_CORETYPE": "Haswell"}),
        {**here, "numpy": "0.0.1"},
        {**here, "blas": ["libother.so"]},
    ]
    assert len({digest(one) for one in [here, *others]}) == 1 + len(others)
    assert [sum(here.get(name) != one.get(name) for name in {**here, **one}) for one in others] == [1] * len(others)


def test_a_little_less_memory_is_the_same_class_of_it(tmp_path: Path) -> None:
    full = machine_facts(machine(tmp_path / "full", memory_kb=16 * 2**20), {})
    reserved = machine_facts(machine(tmp_path / "reserved", memory_kb=15 * 2**20), {})
    assert full["memory_class_gib"] == 16.0
    assert digest(full) == digest(reserved)


def test_gpus_are_named_by_their_drivers(tmp_path: Path) -> None:
    assert gpu_models(tmp_path) == []
    for number in (0, 1):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 7\n")
    for number, target in enumerate((0, 90010)):  # node 0 is the CPU
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"simd_count {number}\ngfx_target_version {target}\n")
    assert gpu_models(tmp_path) == ["NVIDIA H100 80GB HBM3"] * 2 + ["90010"]


def test_blas_is_known_by_the_files_of_its_wheel() -> None:
    assert all(".so" in name or ".dylib" in name or ".dll" in name for name in blas_files())
    assert blas_files() == sorted(blas_files())


def test_no_name_of_a_host_is_in_a_fingerprint() -> None:
    assert "hostname" not in machine_facts()
