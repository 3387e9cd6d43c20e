"""Summarize clocks, temperature, power, throttling and memory errors of cores and GPUs during a computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.perf.sensors.contract import SensorReading


def summary(readings: Sequence[SensorReading]) -> dict[str, Any]:
    """Summarize several readings: extreme values, all throttling reasons, error counts, and increases of the counts."""
    first, last = readings[0], readings[-1]
    clocks = [reading.clock_mhz for reading in readings if reading.clock_mhz is not None]
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    return {
        "clock_mhz": min(clocks, default=None),
        "max_clock_mhz": last.max_clock_mhz,
        "max_temperature_c": max((r.temperature_c for r in readings if r.temperature_c is not None), default=None),
        "max_power_w": max((r.power_w for r in readings if r.power_w is not None), default=None),
        "throttle_events": _since(first.throttled, last.throttled),
        "throttle_reasons": sorted({name for names in reasons for name in names}) if reasons else None,
        "ecc_corrected": last.ecc_corrected,
        "ecc_uncorrected": last.ecc_uncorrected,
        "ecc_corrected_new": _since(first.ecc_corrected, last.ecc_corrected),
        "ecc_uncorrected_new": _since(first.ecc_uncorrected, last.ecc_uncorrected),
    }


def _since(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else last - first
