"""Create fake results of scans with any number of ranks, with some slow or wrong ranks."""

from __future__ import annotations

from typing import Any

from mxpeak.perf.health import summary
from mxpeak.perf.sensors.contract import SensorReading
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.probes import Size
from mxpeak.verbs.scan.run import Record, result

#: A GPU's report while it is throttled.
HOT = (
    SensorReading(1980.0, 1980.0, None, (), 4, 0, power_w=480.0, temperature_c=62.0),
    SensorReading(1200.0, 1980.0, None, ("hardware thermal slowdown",), 7, 0, power_w=310.0, temperature_c=91.0),
)


def open_bits(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the open questions about bits; those about rates depend on other load of the machine."""
    return [one for one in body["undecided"] if "result" in one]


def scan_body(
    ranks: int,
    *,
    slow: dict[int, float] | None = None,
    wrong: dict[int, str] | None = None,
    host: str = "node{:03}",
    a_host: int = 1,
    device: str = "cpu",
    uuid: str | None = None,
    readings: tuple[SensorReading, ...] = (SensorReading(), SensorReading()),
    kinds: str = "",
    copies: bool = False,
) -> dict[str, Any]:
    """Return three rounds on equal ranks, except those that are slow by a factor or have other bits."""
    records = []
    for rank in range(ranks):
        where = {
            "rank": rank,
            "host": host.format(rank // a_host),
            "cores": "0-3",
            "threads": 4,
            "device": device,
            "model": "Invented 9000",
            "uuid": uuid,
            "shares_cores": False,
            "unit_ranks": str(rank),
            "leads_unit": True,
        }
        share, bits = (slow or {}).get(rank, 1.0), (wrong or {}).get(rank, "aaa")
        rates = {"lu": 2.5e11, "gemm": 1.25e12, "read": 1.1e10, **({"d2h": 5.5e10, "h2d": 5.4e10} if copies else {})}
        kind = kinds[rank] if kinds else "Invented 9000, 4 threads, openblas 0.3.30 Haswell"
        record = Record(where, kind, health=summary(readings))
        record.rates = {name: [share * rate * (1 + 1e-3 * (rank % 5))] * 3 for name, rate in rates.items()}
        record.bits = {"lu": list(bits), "gemm": ["a"] * 3}
        records.append(record)
    return result(records, Size(6144, 512, "bf16"), ScanConfig(rounds=3))
