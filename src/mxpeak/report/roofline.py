"""Plot the roofline: the rate of each phase over its flops per byte, below the limits of memory and arithmetic.

As in figure 8 of the HPG-MxP paper, I = flops / bytes, and the rate is at most min(peak, I·bandwidth). The roofs are
the limits that were measured in the runs on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mxpeak.records import bytes_rate_text, rate_text, three_digits
from mxpeak.report.plots import MARKS, Axis, PlotCurve, curves, drawable, unit_of

#: The color of roofs, and the number of colors of phases.
ROOF, COLOURS = 7, 6

Phases = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Roofs:
    """The measured bandwidth and the measured arithmetic rates of one machine."""

    bandwidth: tuple[str, float] | None
    peaks: Mapping[str, float]


def roofs_of(results: Iterable[Mapping[str, Any]], run: Mapping[str, Any]) -> Roofs:
    """Return the measured roofs: the highest value of each limit among the results on the same machine as `run`.

    Results with another number of ranks are ignored.
    """
    peaks: dict[str, float] = {}
    bandwidths: dict[str, float] = {}
    for result in results:
        if measured_on(result) != measured_on(run):
            continue
        limit = (result.get("result") or {}).get("limit") or {}
        name = str(limit.get("name", "")).split(",")[0]
        for key, where in (("rate_bytes", bandwidths), ("rate_flops", peaks)):
            if limit.get(key) and drawable([limit[key]]):
                where[name] = max(where.get(name, 0.0), float(limit[key]))
    own = str(((run.get("result") or {}).get("limit") or {}).get("name", ""))
    if own in bandwidths:  # another run may have measured cache bandwidth instead of memory bandwidth
        return Roofs((own, bandwidths[own]), peaks)
    return Roofs(max(bandwidths.items(), key=lambda item: item[1], default=None), peaks)


def measured_on(result: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the facts on which a limit depends: processor, device, host and number of ranks."""
    machine, launch = result.get("machine") or {}, result.get("launch") or {}
    return machine.get("cpu_model"), machine.get("device_name"), machine.get("hostname"), launch.get("ranks")


def roofline_figure(computations: Mapping[str, Phases], roofs: Roofs) -> str:
    """Return the HTML figure of the roofline with a point per phase; "" if bytes or bandwidth are unknown.

    Each computation has its own marker shape.
    """
    points = {name: _points(phases) for name, phases in computations.items()}
    if roofs.bandwidth is None or not any(points.values()):
        return ""
    intensities = [i for of_phases in points.values() for _, i, _ in of_phases]
    rates = [rate for of_phases in points.values() for _, _, rate in of_phases]
    x = Axis.decades([min(intensities) / 1.5, max(intensities) * 1.5])
    lines = _roof_lines(*roofs.bandwidth, roofs.peaks, x)
    scale, unit = unit_of([*rates, *(y for _, line in lines for _, y in line)], "flop/s")
    series = [
        PlotCurve(label, [(i, scale * rate) for i, rate in line], [label] * len(line), colour=ROOF, dashed=k > 0)
        for k, (label, line) in enumerate(lines)
    ]
    order = list(dict.fromkeys(name for of_phases in points.values() for name, _, _ in of_phases))
    for k, (computation, of_phases) in enumerate(points.items()):
        series += [
            PlotCurve(
                " ".join(filter(None, (name, computation))),
                [(i, scale * rate)],
                [f"{name} {computation}: {rate_text(rate)} at {three_digits(i)} flops per byte"],
                colour=order.index(name) % COLOURS,
                mark=MARKS[k % len(MARKS)],
                joined=False,
            )
            for name, i, rate in of_phases
        ]
    y = Axis.decades([value for curve in series for _, value in curve.points])
    computation, of_phases = next(item for item in points.items() if item[1])
    shares = [f"{name} {100 * rate / (i * roofs.bandwidth[1]):.0f} %" for name, i, rate in of_phases]
    of = f" ({computation})" if computation else ""
    caption = f"Bytes are the minimum that a motif must move. Share of the memory roof{of}: {', '.join(shares)}."
    return curves("Roofline", "flops per byte", unit, x, y, series, caption)


def _points(phases: Phases) -> list[tuple[str, float, float]]:
    """Return the name, the flops per byte and the flop/s of each phase with known flops and bytes."""
    points = []
    for name, phase in phases.items():
        flops, moved, time_s = (float(phase.get(key) or 0.0) for key in ("flops", "bytes", "time_s"))
        if flops and moved and time_s and drawable([flops, moved, time_s]):
            points.append((name, flops / moved, flops / time_s))
    return points


def _roof_lines(
    name: str, bandwidth: float, peaks: Mapping[str, float], x: Axis
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the label and the end points of each roof. The memory roof ends at the lowest arithmetic roof."""
    below = {peak: rate for peak, rate in peaks.items() if rate < x.high * bandwidth}
    end = min([x.high, *(rate / bandwidth for rate in below.values())])
    memory = f"{name} {bytes_rate_text(bandwidth)}", [(x.low, x.low * bandwidth), (end, end * bandwidth)]
    flat = [(f"{peak} {rate_text(rate)}", [(rate / bandwidth, rate), (x.high, rate)]) for peak, rate in below.items()]
    return [memory, *flat]
