"""Read the sensors of a node's devices regularly during a run, in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mxpeak.perf.sensors.contract import ALL_VALUES, MissingValue, Sensors
from mxpeak.watch.prometheus import UPDATE_S, DeviceValues

#: Seconds between the first two readings. The interval is short, because the power of a device that has only an energy
#: counter is unknown until the second reading.
FIRST_S = 1.0


class LiveSensors:
    """Passes the values of devices to `show` every UPDATE_S seconds, until `stop`.

    The thread also finds the sensors, because a driver may need seconds to answer for the first time. It then calls
    `note` with the values that cannot be read. If a device is found again, its first sensors remain in use, so that its
    joules continue. If a driver raises an error, `note` receives the error, and the values of the device are removed
    until a later reading succeeds.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Sensors]],
        show: Callable[[Sequence[DeviceValues]], None],
        note: Callable[[Sequence[str]], None],
        every_s: float = UPDATE_S,
    ):
        self._find, self._show, self._note, self._every_s = find, show, note, every_s
        self._known: dict[tuple[object, ...], DeviceMeter] = {}
        self._wake, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="sensors", daemon=True)
        self._thread.start()

    def watch(self, find: Callable[[], Sequence[Sensors]]) -> None:
        """Find the sensors of other devices, and read them instead of those of the earlier devices."""
        self._find = find
        self._wake.set()

    def stop(self) -> None:
        """End the readings. A driver that does not answer delays this call by at most UPDATE_S seconds."""
        self._ended = True
        self._wake.set()
        self._thread.join(UPDATE_S)

    def _watch(self) -> None:
        meters, last_find, pause_s = list[DeviceMeter](), None, self._every_s
        while not self._ended:
            self._wake.clear()
            values, notes = list[DeviceValues](), list[str]()
            if (find := self._find) is not last_find:
                meters, last_find, pause_s = [], None, min(FIRST_S, self._every_s)
                try:
                    meters = [self._known.setdefault(device.key, DeviceMeter(device)) for device in find()]
                    last_find = find
                except Exception as error:  # the packages of the drivers raise errors of any type
                    notes.append(f"mxpeak cannot read the devices: {type(error).__name__}: {error}")
            for meter in meters:
                try:
                    now, missing = meter.read(), meter.missing()
                except Exception as error:
                    notes.append(f"mxpeak cannot read {meter.device}: {type(error).__name__}: {error}")
                else:
                    values.append(now)
                    notes += [_unread(value, meter.device) for value in missing]
            if self._ended:
                return
            self._note(notes)
            self._show(values)
            self._wake.wait(pause_s)
            pause_s = self._every_s


def _unread(value: MissingValue, device: str) -> str:
    """Return a sentence about a value of a device that cannot be read."""
    article = "" if value.name == ALL_VALUES else "the "
    return f"mxpeak cannot read {article}{value.name} of {device}: {value.reason}"


class DeviceMeter:
    """Reads a device. If the device reports no power, its mean power since the last reading is used."""

    def __init__(self, sensors: Sensors):
        self._sensors = sensors
        self.device, self.missing = sensors.device, sensors.missing
        self._last: tuple[float, float | None] = (0.0, None)

    def read(self) -> DeviceValues:
        """Read the device and return its values."""
        reading, joules, now = self._sensors.read(), self._sensors.joules(), time.perf_counter()
        (before, joules_before), power_w = self._last, reading.power_w
        if power_w is None and joules is not None and joules_before is not None:
            power_w = (joules - joules_before) / (now - before)
        self._last = now, joules
        return DeviceValues(self._sensors, time.time(), reading, power_w, joules)
