"""Predict the rate of a run and an interval by simulating a machine, a slower machine and a faster machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mxpeak.perf.simulation import hpl, mxp
from mxpeak.perf.simulation.lu import LuForecast, LuRun
from mxpeak.perf.simulation.machines import Machine
from mxpeak.perf.simulation.sparse import SparseForecast

AnyForecast = TypeVar("AnyForecast", LuForecast, SparseForecast)


@dataclass(frozen=True, slots=True)
class Prediction(Generic[AnyForecast]):
    """A forecast, and the rates with compute and network slower (`low`) or faster (`high`) by the machine's spread."""

    forecast: AnyForecast
    low: float
    high: float

    def section(self) -> dict[str, float]:
        """Return the rate, the time and the interval as a section of the JSON result."""
        return {
            "rate_flops": self.forecast.rate_flops,
            "time_s": self.forecast.time_s,
            "low": self.low,
            "high": self.high,
        }


def predict(simulate: Callable[[Machine], AnyForecast], machine: Machine) -> Prediction[AnyForecast]:
    """Simulate a run on the machine, a slower and a faster machine, and return the forecast with the interval."""
    compute, network = machine.spread
    low, high = (simulate(machine.varied(1 + s * compute, 1 + s * network)).rate_flops for s in (-1, 1))
    return Prediction(simulate(machine), low, high)


def simulate_lu(benchmark: str, run: LuRun, machine: Machine) -> LuForecast:
    """Simulate a run of HPL or HPL-MxP on a machine and return the forecast."""
    if benchmark == "hpl":
        return hpl.simulate_hpl(run, machine)
    return mxp.simulate_mxp(run, machine)
