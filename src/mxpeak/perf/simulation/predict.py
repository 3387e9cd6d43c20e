"""Predict a rate and its interval by simulating the machine, a slower machine and a faster machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mxpeak.perf.simulation import hpl, mxp
from mxpeak.perf.simulation.lu import LuForecast, LuRun
from mxpeak.perf.simulation.machines import Machine


class Forecast(Protocol):
    """The result of a simulation, from which predictions are made."""

    @property
    def time_s(self) -> float:
        """Return the time of the run in seconds."""

    @property
    def rate_flops(self) -> float:
        """Return the credited flops per second."""


AnyForecast = TypeVar("AnyForecast", bound=Forecast)


@dataclass(frozen=True, slots=True)
class Prediction(Generic[AnyForecast]):
    """A forecast, and the rates if both compute and network are slower, or both faster, by the machine's spread."""

    forecast: AnyForecast
    low: float
    high: float

    def section(self) -> dict[str, float]:
        """Return the prediction as a section of the JSON result."""
        return {
            "rate_flops": self.forecast.rate_flops,
            "time_s": self.forecast.time_s,
            "low": self.low,
            "high": self.high,
        }


def predict(simulate: Callable[[Machine], AnyForecast], machine: Machine) -> Prediction[AnyForecast]:
    """Simulate one run, and return its prediction with the interval of the rate."""
    compute, network = machine.spread
    low, high = (simulate(machine.varied(1 + s * compute, 1 + s * network)).rate_flops for s in (-1, 1))
    return Prediction(simulate(machine), low, high)


def simulate_lu(benchmark: str, run: LuRun, machine: Machine) -> LuForecast:
    """Simulate one run of HPL or HPL-MxP."""
    if benchmark == "hpl":
        return hpl.simulate(run, machine)
    return mxp.simulate(run, machine)
