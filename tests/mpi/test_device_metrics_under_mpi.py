"""Test the metrics of devices of invented nodes under mpiexec: one file per node, and no leftover values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.metrics import metrics
from tests.support.ranks import MPIEXEC, needs_mpi
from tests.support.sensors import cray_node

pytestmark = needs_mpi

#: Runs the command line on a rank with the sensors of a system tree; device metrics are copied while they exist.
RANK = """
import sys
from functools import partial
from mxpeak.cli import observers
from mxpeak.cli.main import main
from mxpeak.perf.sensors.choose import node_sensors
from mxpeak.watch.prometheus import MetricsFile

observers.node_sensors = partial(node_sensors, root=sys.argv[1])
write = MetricsFile.devices

def devices(self, values):
    write(self, values)
    if values:
        self.path.with_suffix(".seen").write_text(self.path.read_text())

MetricsFile.devices = devices
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("nodes", ["ab", "aabb"])
def test_each_node_writes_its_own_devices(tmp_path: Path, nodes: str) -> None:
    root = cray_node(tmp_path / "root")
    run = ["run", "hpl", "-N", "1500", "--nb", "32", "--warmup", "none", "--threads", "1", "--out", "out"]
    command: list[str] = []
    for node in nodes:
        rank = [sys.executable, "-c", RANK, str(root), *run, "--prometheus", "m.prom"]
        command += [":"] * bool(command) + ["-n", "1", "env", f"MXPEAK_NODE=node{node}", *rank]
    done = subprocess.run(
        [str(MPIEXEC), *command], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("*.prom")} == {"m.prom", "m.nodeb.prom"}
    for file, host in (("m.seen", "nodea"), ("m.nodeb.seen", "nodeb")):
        found = metrics((tmp_path / file).read_text())
        assert found[f'mxpeak_device_power_watts{{host="{host}",benchmark="hpl",device="node"}}'] == 600.0
        assert {name for name in found if "_device_" in name and host not in name} == set()
    assert "mxpeak_device_" not in (tmp_path / "m.prom").read_text() + (tmp_path / "m.nodeb.prom").read_text()
    assert metrics((tmp_path / "m.prom").read_text())["mxpeak_exit_code"] == 0.0
    assert done.stderr.count("memory_power contains 'NOTAVAIL'") == 1, "only rank 0 prints it"
