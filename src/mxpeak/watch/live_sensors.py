"""Read the sensors of a node's devices regularly during a run, in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mxpeak.perf.sensors.contract import Sensors
from mxpeak.watch.prometheus import UPDATE_S, DeviceValues

#: Seconds between the first two readings, so that the power of devices with only an energy counter follows early.
FIRST_S = 1.0


class LiveSensors:
    """Passes the values of devices to `show` every UPDATE_S seconds, until `stop`.

    The thread also finds the sensors, because a driver may need seconds to answer for the first time. It then calls
    `note` with the values that cannot be read.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Sensors]],
        show: Callable[[Sequence[DeviceValues]], None],
        note: Callable[[Sequence[str]], None],
        every_s: float = UPDATE_S,
    ):
        self._find, self._show, self._note, self._every_s = find, show, note, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sensors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the readings. A driver that does not answer delays this call by at most UPDATE_S seconds."""
        self._ended.set()
        self._thread.join(UPDATE_S)

    def _watch(self) -> None:
        devices = self._find()
        meters = [DeviceMeter(device) for device in devices]
        pause_s = min(FIRST_S, self._every_s)
        while not self._ended.is_set():
            values = [meter.read() for meter in meters]
            if self._ended.is_set():
                return
            self._note([f"no {text} of {device.device}" for device in devices for text in device.missing()])
            self._show(values)
            self._ended.wait(pause_s)
            pause_s = self._every_s


class DeviceMeter:
    """Reads a device. If the device reports no power, its mean power since the last reading is used."""

    def __init__(self, sensors: Sensors):
        self._sensors = sensors
        self._last: tuple[float, float | None] = (0.0, None)

    def read(self) -> DeviceValues:
        """Read the device and return its values."""
        reading, joules, now = self._sensors.read(), self._sensors.joules(), time.perf_counter()
        (before, joules_before), power_w = self._last, reading.power_w
        if power_w is None and joules is not None and joules_before is not None:
            power_w = (joules - joules_before) / (now - before)
        self._last = now, joules
        return DeviceValues(self._sensors, time.time(), reading, power_w, joules)
