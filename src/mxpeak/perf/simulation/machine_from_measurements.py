"""Build the description of a machine from measurements of single kernels, with the source of each number.

A record is the result of one measurement: its `name`, its sizes, and `seconds` or a `rate`. No number is fitted to a
run of a benchmark. A comparison of a run with its prediction therefore tests the description.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mxpeak.errors import UsageError

Record = Mapping[str, Any]

#: Assumed number of GMRES steps on HPL-MxP's own matrix, until a run has counted the steps.
STEPS = {"fp32": 2, "bf16": 4, "fp16": 3}
#: Minimum of `memory_share`, and maximum of `lib_passes` and `ilib_passes`, in the table of a machine.
MIN_SHARE, MAX_PASSES = 0.01, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The facts about a machine and a layout that are not measured. `memory_bytes` is per rank."""

    title: str
    ranks: int
    threads: int
    ranks_per_node: int
    cores: int
    memory_bytes: float
    steps: int | None = None


def machine_table(records: Sequence[Record], layout: Layout) -> dict[str, Any]:
    """Return the table of a machine from measurements on a layout; raise a UsageError if a measurement is missing."""
    records = _undisturbed(records)
    read = _rate(records, "read")
    edge = _edge(records)
    gemm = {name: _gemm_curve(records, name, edge) for name in _precisions(records, "gemm")}
    low = next((name for name in ("fp16", "bf16", "fp32") if name in gemm), "fp32")
    steps, counted = (STEPS[low], "assumed") if layout.steps is None else (layout.steps, "counted in a run")
    return {
        "title": layout.title,
        "ranks_per_node": layout.ranks_per_node,
        "cores": max(layout.cores, layout.ranks_per_node),
        "memory_bytes": layout.memory_bytes,
        "memory_rate": _said(read, "measured: products of a matrix and a vector, all ranks at once"),
        "memory_share": _said(_share(records, read), "measured: Gauss-Seidel in fp64"),
        "generate_rate": _said(_rate(records, "generate"), "measured: A x, with A generated again"),
        "cast_rate": _said(_rate(records, "cast"), "measured"),
        "solve_rate": _said(_rate(records, "solve"), "measured: L and U in fp32"),
        **_turns(records),
        # per step a residual and a solve; two more of each; A generated in fp32, and its norm
        "refine_steps": _said(steps + 2, f"{counted}: {steps} steps of GMRES, a first and a last residual"),
        "extra_passes": _said(2, "A is generated in fp32 and its norm computed in the timed part"),
        "devices": int(any(str(r.get("device", "")).startswith("cuda") for r in records)),
        "network": _network(records, read, layout.ranks),
        "gemm": {
            "edge": _said(edge, "measured: smaller blocks against the largest"),
            **{name: {"points": points, "source": "measured"} for name, points in gemm.items()},
        },
        "trsm": {
            name: {"points": _points(records, "trsm", name), "source": "measured"}
            for name in _precisions(records, "trsm")
        },
        "factor": {"fp32": {"points": _points(records, "factor", "fp32"), "source": "measured"}},
        **_panel(records, read),
    }


def _undisturbed(records: Iterable[Record]) -> list[Record]:
    """Return the fastest record of each repeated measurement, because other processes disturbed the others."""
    best: dict[str, Record] = {}
    for r in records:
        key = json.dumps({name: value for name, value in r.items() if name not in ("seconds", "rate")}, sort_keys=True)
        if key not in best or _cost(r) < _cost(best[key]):
            best[key] = r
    return list(best.values())


def _cost(record: Record) -> float:
    return 1.0 / record["rate"] if "rate" in record else float(record["seconds"])


def _precisions(records: Iterable[Record], name: str) -> list[str]:
    """Return the precisions in which a kernel was measured; raise a UsageError if there are none."""
    precisions = sorted({str(r["precision"]) for r in _of(records, name)})
    if not precisions:
        raise _missing(name)
    return precisions


def _of(records: Iterable[Record], name: str) -> list[Record]:
    return [r for r in records if r["name"] == name]


def _rate(records: Sequence[Record], name: str) -> float:
    """Return the rate of a kernel that is measured at only one size; raise a UsageError if it was not measured."""
    rates = [float(r["rate"]) for r in _of(records, name)]
    if not rates:
        raise _missing(name)
    return max(rates)


def _missing(name: str) -> UsageError:
    return UsageError(f"{name} has not been measured yet; run mxpeak tune to continue the measurements")


def _said(value: float, source: str) -> dict[str, Any]:
    return {"value": value, "source": source}


def _points(records: Sequence[Record], name: str, precision: str) -> list[list[float]]:
    """Return the points (k, rate) of a kernel in one precision, where k is the inner dimension."""
    best: dict[int, float] = {}
    for r in _of(records, name):
        if r["precision"] == precision:
            best[r["k"]] = max(best.get(r["k"], 0.0), float(r["rate"]))
    if not best:
        raise UsageError(
            f"{name} in {precision} has not been measured yet; run mxpeak tune to continue the measurements"
        )
    return [[k, rate] for k, rate in sorted(best.items())]


def _products(records: Iterable[Record]) -> list[Record]:
    """Return the measured products whose C is square; the products with other shapes only serve as a map of rates."""
    return [r for r in _of(records, "gemm") if r.get("n", r["m"]) == r["m"]]


def _edge(records: Sequence[Record]) -> float:
    """Return the number e of rows and columns that a product wastes at its edges, from GEMM rates at two block sizes.

    The model is rate(s) = R (s / (s + e))² for s×s blocks. With q² = rate(s)/rate(b), e = s b (1 - q) / (q b - s).
    """
    edges = []
    for r in _products(records):
        same_k = [o for o in _products(records) if (o["precision"], o["k"]) == (r["precision"], r["k"])]
        whole = max(same_k, key=lambda o: int(o["m"]))
        s, b, q = float(r["m"]), float(whole["m"]), (r["rate"] / whole["rate"]) ** 0.5
        if r["precision"] == "fp64" and s < b and q * b > s:
            edges.append(max(0.0, s * b * (1 - q) / (q * b - s)))
    return median(edges) if edges else 0.0


def _gemm_curve(records: Sequence[Record], precision: str, edge: float) -> list[list[float]]:
    """Return the points (k, rate) of GEMM without the loss at the edges, from the largest blocks of each k."""
    best: dict[int, tuple[int, float]] = {}
    for r in _products(records):
        if r["precision"] == precision:
            best[r["k"]] = max(best.get(r["k"], (0, 0.0)), (int(r["m"]), float(r["rate"])))
    return [[k, rate * ((m + edge) / m) ** 2] for k, (m, rate) in sorted(best.items())]


def _share(records: Sequence[Record], read: float) -> float:
    return min(1.0, max(MIN_SHARE, _rate(records, "sweep") / read))


def _panel(records: Sequence[Record], read: float) -> dict[str, Any]:
    """Return the parameters of FACT and of row moves.

    The rate and the time s per column of FACT follow from t = flops / rate + NB·s for a tall and a short panel of NB
    columns.
    """
    by_nb: dict[int, dict[int, float]] = {}
    for r in _of(records, "fact"):
        heights = by_nb.setdefault(r["k"], {})
        heights[r["m"]] = min(heights.get(r["m"], float("inf")), float(r["seconds"]))
    if not by_nb:
        raise _missing("fact")
    points, syncs = [], []
    for nb, heights in sorted(by_nb.items()):
        tall, short = max(heights), min(heights)
        more, flops = heights[tall] - heights[short], panel_flops(tall, nb)
        per_flop = more / (flops - panel_flops(short, nb)) if tall > short and more > 0 else heights[tall] / flops
        sync = max(0.0, (heights[tall] - per_flop * flops) / nb)
        syncs.append(sync)
        points.append([nb, flops / (heights[tall] - nb * sync)])
    exchange_s = _exchange_seconds(records)
    rows = min(_of(records, "rows"), key=lambda r: float(r["seconds"]) / r["bytes"], default=None)
    passes = 4.0 if rows is None else rows["seconds"] * read / rows["bytes"]
    return {
        "fact": {"fp64": {"points": points, "source": "measured: panels on the cores that also update"}},
        "panel": {
            "sync_s": _said(median(syncs), "measured: a column of a panel, without its flops"),
            **(
                {}
                if exchange_s is None
                else {"exchange_s": _said(exchange_s, "measured: a panel that two ranks share, without its messages")}
            ),
            "row_passes": _said(min(1000.0, max(1.0, passes)), "measured" if rows else "assumed"),
        },
    }


def _exchange_seconds(records: Sequence[Record]) -> float | None:
    """Return the seconds per column of FACT on two ranks, without the message of 2 NB entries; None if not measured."""
    pair = min(_of(records, "pair"), key=lambda r: float(r["seconds"]), default=None)
    link = _link(records)
    if pair is None or link is None:
        return None
    latency_s, rate = link
    return max(0.0, float(pair["seconds"]) - latency_s - 2 * 8 * float(pair["k"]) / rate)


def panel_flops(m: float, nb: float) -> float:
    """Return the flops of the factorization of an m×NB panel: m NB² - NB³/3."""
    return m * nb**2 - nb**3 / 3.0


def _turns(records: Sequence[Record]) -> dict[str, Any]:
    """Return `turn_s`, the measured seconds per message in a distributed solve with L and U, as part of the table.

    The time includes waits and is at least one latency. The result is empty if `turn_s` was not measured.
    """
    seconds, link = [float(r["seconds"]) for r in _of(records, "turn")], _link(records)
    if not seconds or link is None:
        return {}
    return {"turn_s": _said(max(min(seconds), link[0]), "measured: solves with L and U that all ranks share")}


def _network(records: Sequence[Record], read: float, ranks: int) -> dict[str, Any]:
    """Return the network table: ports, rates, latency and passes of the library's broadcasts.

    A single rank sends no messages, so its network has the rate of memory.
    """
    copy = 2.0 * _rate(records, "copy")  # a panel on a device is copied to the host and back; the probe copies it once
    link = _link(records)
    if ranks > 1 and link is None:
        raise _missing("pingpong")
    if link is None:
        alone = "measured on one rank, which sends no messages: the rate of memory"
        return {
            "nics": 1,
            "nic_rate": _said(read, alone),
            "latency_s": _said(0.0, alone),
            "local_rate": _said(read, alone),
            "host_rate": _said(copy, "measured: twice the rate of a panel's copy"),
        }
    latency_s, rate = link
    return {
        "nics": 1,
        "nic_rate": _said(rate, "as local_rate: no other node was measured"),
        "latency_s": _said(latency_s, "measured: ping-pong"),
        "local_rate": _said(rate, "measured: ping-pong"),
        "host_rate": _said(copy, "measured: twice the rate of a panel's copy"),
        "lib_passes": _said(_passes(records, "lib", rate), "measured"),
        "ilib_passes": _said(_passes(records, "ilib", rate), "measured"),
    }


def _link(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the latency of the shortest message and the bytes per second of the longest; None if not measured."""
    messages = sorted((int(r["bytes"]), float(r["seconds"])) for r in _of(records, "pingpong"))
    if not messages:
        return None
    latency_s = min(seconds for size, seconds in messages if size == messages[0][0])
    size = messages[-1][0]
    return latency_s, size / max(1e-9, min(seconds for other, seconds in messages if other == size) - latency_s)


def _passes(records: Sequence[Record], name: str, rate: float) -> float:
    """Return how many times a broadcast sends its message through a link, computed from the longest message."""
    messages = [(int(r["bytes"]), -float(r["seconds"])) for r in _of(records, "bcast") if r["bcast"] == name]
    if not messages:
        return 2.0
    size, seconds = max(messages)
    return min(MAX_PASSES, max(0.5, -seconds * rate / size))


def to_toml(name: str, table: Mapping[str, Any]) -> str:
    """Return a machine's table as the text of a TOML file that `find_machine` reads."""
    alone = {key: value for key, value in table.items() if not _is_table(value)}
    inner = {key: value for key, value in table.items() if _is_table(value)}
    parts = [f"[{name}]\n{_lines(alone)}", *(f"[{name}.{key}]\n{_lines(value)}" for key, value in inner.items())]
    return "# Measured by mxpeak tune.  FLOP/s, bytes/s, seconds.\n\n" + "\n".join(parts)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and "source" not in value


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
