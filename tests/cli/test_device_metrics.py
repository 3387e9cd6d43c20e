"""Test the values of devices in the metrics file during a run, with invented sensors."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.harness import NodeDevices
from mxpeak.cli import main as cli
from mxpeak.cli import observers
from mxpeak.cli.observers import DeviceMetrics
from mxpeak.perf.sensors.choose import node_sensors
from mxpeak.perf.sensors.contract import ALL_VALUES, MissingValue, SensorReading, Sensors
from mxpeak.perf.sensors.cores import CoreSensors
from mxpeak.watch import live_sensors
from mxpeak.watch.live_sensors import DeviceMeter, LiveSensors
from mxpeak.watch.prometheus import DeviceValues, Metrics, MetricsFile
from tests.support.metrics import metrics
from tests.support.sensors import H100, MI300X, Grows, Told, amdsmi, cray_node, nvml, package, two_cores

ABOUT = {"benchmark": "hpl", "version": "0", "host": "node7", "ranks": "2", "cluster": "crow", "job": "17"}
NVIDIA = "0000:1b:00.0"


def labels(device: str, **more: str) -> str:
    about = {"cluster": "crow", "host": "node7", "benchmark": "hpl", "device": device, **more}
    return "{" + ",".join(f'{name}="{value}"' for name, value in about.items()) + "}"


def missing(text: str) -> str:
    return f'mxpeak_missing_value_info{{cluster="crow",host="node7",benchmark="hpl",text="{text}"}} 1.0\n'


@contextmanager
def watched(path: Path, devices: NodeDevices, metrics: Metrics | None) -> Iterator[DeviceMetrics]:
    """Write the metrics of these devices to the file at least twice."""
    live = DeviceMetrics(path, ABOUT, metrics)
    live.watch(devices)
    yield live
    live.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread has met the condition."""
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sensors, "FIRST_S", 0.01)
    monkeypatch.setattr(observers, "LiveSensors", partial(live_sensors.LiveSensors, every_s=0.01))


def at(root: Path) -> Callable[..., Sequence[Sensors]]:
    """Return a function that returns the sensors of this system tree for every query of a run."""
    return lambda *what, **how: node_sensors(*what, root=root, **how)


@pytest.mark.usefixtures("often")
def test_the_devices_of_a_node_are_in_the_file_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, path = two_cores(tmp_path / "root"), tmp_path / "mxpeak.prom"
    energy = package(root, 0, 1_000_000)
    monkeypatch.setattr(observers, "node_sensors", at(root))
    millijoules = iter(range(0, 10**9, 7_000))
    known = {**H100, ("nvmlDeviceGetTotalEnergyConsumption",): lambda: next(millijoules)}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(known))
    run = Metrics(path, ABOUT, clock=lambda: 1.0)
    with watched(path, NodeDevices("node7", [0, 1], [NVIDIA], amd=False), run) as live:
        until(lambda: "mxpeak_device" in path.read_text())
        (energy / "energy_uj").write_text("4000000\n")
        until(lambda: f"energy_joules_total{labels('package-0')} 3.0" in path.read_text())
        until(lambda: f"power_watts{labels('package-0')} 0.0" in path.read_text())
        values = metrics(path.read_text())
        text = path.read_text()
    gpu, cores = labels(NVIDIA), labels("cores")
    expected = {
        f"power_watts{gpu}": pytest.approx(698.123),
        f"temperature_celsius{gpu}": 66.0,
        f"clock_hertz{gpu}": 1.41e9,
        f"max_clock_hertz{gpu}": 1.98e9,
        f"memory_clock_hertz{gpu}": 2.619e9,
        f"throttled{labels(NVIDIA, reason='software power cap')}": 1.0,
        f"throttled{labels(NVIDIA, reason='hardware slowdown')}": 0.0,
        f"ecc_errors_total{labels(NVIDIA, kind='corrected')}": 3.0,
        f"info{labels(NVIDIA, kind='gpu', source='NVML', uuid='GPU-1234')}": 1.0,
        f"temperature_celsius{cores}": 62.5,
        f"clock_hertz{cores}": 1.2e9,
        f"throttle_events_total{cores}": 9.0,
        f"ecc_errors_total{labels('cores', kind='uncorrected')}": 1.0,
        f"info{labels('package-0', kind='cpu', source='RAPL')}": 1.0,
    }
    assert {name: values[f"mxpeak_device_{name}"] for name in expected} == expected
    assert values[f"mxpeak_device_energy_joules_total{gpu}"] % 7.0 == 0.0
    assert f"mxpeak_device_ecc_errors_total{labels(NVIDIA, kind='uncorrected')}" not in values, "NVML does not know it"
    assert missing("mxpeak cannot read the memory errors of 0000:1b:00.0: NVML: Not Supported") in text
    assert values["mxpeak_update_time_seconds"] == 1.0, "readings are no progress: a stalled run must be noticed"
    run.ended(0)
    assert "mxpeak_device_" not in path.read_text()
    assert [thread.name for thread in threading.enumerate() if thread.name == "sensors"] == []
    said: list[str] = []
    live.log_missing(type("Session", (), {"log": said.append}))  # type: ignore[arg-type]
    assert said == [
        f"note: {path} does not contain all values of the devices:\n"
        "  mxpeak cannot read the memory errors of 0000:1b:00.0: NVML: Not Supported"
    ]


@pytest.mark.usefixtures("often")
def test_the_energy_of_a_device_continues_in_the_next_benchmark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A counter of Prometheus must not restart; the next benchmark uses fewer cores of the same processor."""
    root, path = two_cores(tmp_path / "root"), tmp_path / "mxpeak.prom"
    energy = package(root, 0, 1_000_000) / "energy_uj"
    monkeypatch.setattr(observers, "node_sensors", at(root))
    joules, clock = f"energy_joules_total{labels('package-0')}", f"clock_hertz{labels('cores')}"
    with watched(path, NodeDevices("node7", [0, 1], [], amd=False), Metrics(path, ABOUT)) as live:
        until(lambda: f"{clock} 1200000000.0" in path.read_text())
        energy.write_text("4000000\n")
        until(lambda: f"{joules} 3.0" in path.read_text())
        live.watch(NodeDevices("node7", [1], [], amd=False))
        until(lambda: f"{clock} 3400000000.0" in path.read_text())
        assert f"{joules} 3.0" in path.read_text()
        energy.write_text("6000000\n")
        until(lambda: f"{joules} 5.0" in path.read_text())
        assert [thread.name for thread in threading.enumerate()].count("sensors") == 1


@pytest.mark.usefixtures("often")
def test_other_nodes_have_their_own_file_without_a_state_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An alert on a run without updates must not refer to these files."""
    monkeypatch.setattr(observers, "node_sensors", at(cray_node(tmp_path / "root")))
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(MI300X))
    own = tmp_path / "mxpeak.node8.prom"
    with watched(tmp_path / "mxpeak.prom", NodeDevices("node8", [0], ["0000:c1:00.0"], amd=True), None):
        until(own.exists)
        values = metrics(own.read_text())
    node, gpu = (labels(name).replace("node7", "node8") for name in ("node", "0000:c1:00.0"))
    assert values[f"mxpeak_device_power_watts{node}"] == 600.0
    assert values[f"mxpeak_device_power_watts{gpu}"] == 731.0
    assert not {name for name in values if name.startswith(("mxpeak_running", "mxpeak_update"))}
    assert set(metrics(own.read_text())) == {name for name in values if name.startswith("mxpeak_run_info")}
    assert not (tmp_path / "mxpeak.prom").exists()


@pytest.mark.usefixtures("often")
def test_a_file_that_another_node_cannot_write_is_an_error_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    looked = threading.Event()
    monkeypatch.setattr(observers, "node_sensors", lambda *what, **how: [Noted(looked)])
    with watched(tmp_path / "missing/mxpeak.prom", NodeDevices("node8", [0], [], amd=False), None):
        assert looked.wait(60.0)
    assert "mxpeak: error: cannot write --prometheus" in (said := capfd.readouterr().err)
    assert "on node7: No such file or directory" in said


@pytest.mark.usefixtures("often")
def test_a_driver_that_fails_leaves_no_old_values_and_does_not_end_the_readings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, (lost, good) = tmp_path / "mxpeak.prom", (Steady("lost"), Steady("good"))
    failing = True

    def find(*what: Any, **how: Any) -> list[Sensors]:
        if failing:
            raise KeyError("libdriver.so")
        return [lost, good]

    monkeypatch.setattr(observers, "node_sensors", find)
    power = f"mxpeak_device_power_watts{labels('lost')}"
    with watched(path, NodeDevices("node7", [0], [], amd=False), Metrics(path, ABOUT)):
        until(lambda: missing("mxpeak cannot read the devices: KeyError: 'libdriver.so'") in path.read_text())
        failing = False
        until(lambda: f"{power} 5.0" in path.read_text())
        assert "mxpeak cannot read" not in path.read_text()
        lost.error = RuntimeError("the driver was unloaded")
        until(lambda: missing("mxpeak cannot read lost: RuntimeError: the driver was unloaded") in path.read_text())
        found = metrics(path.read_text())
        assert power not in found
        assert found[f"mxpeak_device_power_watts{labels('good')}"] == 5.0
        lost.error = None
        until(lambda: f"{power} 5.0" in path.read_text())


class Steady(Told):
    """Sensors with a constant power, unless they have an error."""

    def __init__(self, device: str):
        super().__init__(device=device)
        self.error: Exception | None = None

    def joules(self) -> float | None:
        return None

    def read(self) -> SensorReading:
        if self.error is not None:
            raise self.error
        return SensorReading(power_w=5.0)


class Noted(Told):
    """Sensors that note the second reading."""

    def __init__(self, looked: threading.Event):
        super().__init__()
        self._looked, self._times = looked, 0

    def joules(self) -> float | None:
        return None

    def read(self) -> SensorReading:
        self._times += 1
        if self._times > 1:
            self._looked.set()
        return SensorReading(power_w=5.0)


def test_a_power_that_a_device_does_not_report_follows_from_its_energy() -> None:
    meter = DeviceMeter(Grows(time.perf_counter, power_w=250.0))
    assert meter.read().power_w is None, "one energy has no power"
    time.sleep(0.05)
    values = meter.read()
    assert values.power_w == pytest.approx(250.0, rel=0.05)
    assert values.unix == pytest.approx(time.time(), abs=60.0)


def test_unknown_values_are_absent_and_never_zero(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.prom", ABOUT)
    file.devices([DeviceValues(CoreSensors([0], tmp_path), 5.0, SensorReading(), None, None)])
    found = metrics((tmp_path / "m.prom").read_text())
    assert {name for name in found if "_device_" in name} == {
        f"mxpeak_device_info{labels('cores', kind='cpu', source='/sys')}",
        f"mxpeak_device_read_time_seconds{labels('cores')}",
    }


# --- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [["run", "hpl", "-N", "256", "--nb", "32"], ["scan", "-N", "256", "--ranks", "1"]])
@pytest.mark.usefixtures("often")
def test_a_run_writes_the_values_of_its_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = package(tmp_path / "root", 0, 0).parents[3]
    monkeypatch.setattr(observers, "node_sensors", at(root))
    seen: list[str] = []
    write = MetricsFile.devices

    def devices(self: MetricsFile, values: Any) -> None:
        write(self, values)
        seen.append(self.path.read_text())

    monkeypatch.setattr(MetricsFile, "devices", devices)
    code = cli.main([*verb, "--threads", "1", "--prometheus", "m.prom", "--json", "r.json"])
    assert code in ((0, 3) if verb[0] == "scan" else (0,)), "other programs may slow a rank of a scan"
    assert any("mxpeak_device_info{host=" in text and 'device="package-0"' in text for text in seen)
    assert "mxpeak_device_" not in Path("m.prom").read_text()
    assert f"mxpeak_exit_code {code}.0" in Path("m.prom").read_text()
    said = capfd.readouterr().err
    assert "note: m.prom does not contain all values of the devices:\n  mxpeak cannot read the clock of cores: " in said
    assert json.loads(Path("r.json").read_text())


@pytest.mark.parametrize("full_from", ["mxpeak_run_info", "mxpeak_exit_code"])
@pytest.mark.parametrize("verb", [["run", "hpl", "-N", "256", "--nb", "32"], ["scan", "-N", "256", "--ranks", "1"]])
@pytest.mark.usefixtures("often")
def test_a_full_disk_is_the_only_message_about_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: list[str], full_from: str, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(observers, "node_sensors", at(package(tmp_path / "root", 0, 0).parents[3]))
    write = Path.write_text

    def full(path: Path, text: str, **how: Any) -> int:
        if path.name.endswith(".prom.part") and full_from in text:
            raise OSError(ENOSPC, "No space left on device")
        return write(path, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    code = cli.main([*verb, "--threads", "1", "--prometheus", "m.prom"])
    assert code == 5
    said = capfd.readouterr().err
    assert said.count("note: ") == (verb[0] == "run" and full_from == "mxpeak_exit_code")  # before the last write
    assert said.count("cannot write --prometheus") == 1
    assert "mxpeak: error: cannot write --prometheus m.prom: No space left on device" in said


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (("clock", "/sys/a: No such file"), "mxpeak cannot read the clock of cores: /sys/a: No such file"),
        (("energy", "a counter (of 2)"), "mxpeak cannot read the energy of cores: a counter (of 2)"),
        (("power (12 V)", "no file"), "mxpeak cannot read the power (12 V) of cores: no file"),
        ((ALL_VALUES, "NVML: Not Found"), "mxpeak cannot read all values of cores: NVML: Not Found"),
    ],
)
def test_a_value_that_cannot_be_read_is_reported_in_a_sentence(value: tuple[str, str], sentence: str) -> None:
    class Broken(Sensors):
        device, source, kind = "cores", "files", "cpu"

        def missing(self) -> list[MissingValue]:
            return [MissingValue(*value)]

    notes: list[str] = []
    live = LiveSensors(lambda: [Broken()], lambda values: None, notes.extend)
    until(lambda: bool(notes))
    live.stop()
    assert notes[0] == sentence
