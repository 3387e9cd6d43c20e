"""Machines described by the rates of their ranks and links, which are read from machines.toml or a user's file."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from mxpeak.errors import UsageError
from mxpeak.foreign import read_text
from mxpeak.options import closest
from mxpeak.precision import stored_as

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """A rate as a function of size. It is linear in the logarithm of the size between points, and constant outside."""

    points: tuple[tuple[float, float], ...]

    def __call__(self, size: float) -> float:
        """Return the rate at a size."""
        if size <= self.points[0][0]:
            return self.points[0][1]
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:]):
            if size <= x1:
                return y0 + (y1 - y0) * math.log(size / x0) / math.log(x1 / x0)
        return self.points[-1][1]

    def times(self, factor: float) -> Curve:
        """Return the curve with all rates multiplied by a factor."""
        return Curve(tuple((x, factor * y) for x, y in self.points))


@dataclass(frozen=True, slots=True)
class Network:
    """The links of one node in one direction, with bytes per second and seconds per message.

    nics, nic_rate     number of ports of a node, which its ranks share, and rate of a port; each rank uses one port
    local_rate         rate between the devices of a node
    host_rate          rate between a device and its host
    lib_passes         how many times the library's broadcast sends a message through a node's port: 1 if pipelined
    ilib_passes        the same for the library's nonblocking broadcast
    lib_overlaps       whether devices compute while their hosts are in the library's broadcast
    """

    nics: int
    nic_rate: float
    latency_s: float
    local_rate: float
    local_latency_s: float
    host_rate: float
    lib_passes: float
    ilib_passes: float
    lib_overlaps: bool = False

    def rate(self, sharing: int) -> float:
        """Return the rate per rank if `sharing` ranks of a node send together: nic_rate · min(1, nics / sharing)."""
        return self.nic_rate * min(1.0, self.nics / sharing)

    def times(self, factor: float) -> Network:
        """Return the network with the rates of ports and local links multiplied by a factor."""
        return replace(self, nic_rate=factor * self.nic_rate, local_rate=factor * self.local_rate)


@dataclass(frozen=True, slots=True)
class Machine:
    """The parameters of a simulated machine; rates are per rank.

    gemm                 FLOP/s of products by inner dimension, for each precision
    trsm, factor         FLOP/s of triangular solves and of diagonal blocks by block size, for each precision
    gemm_share           share of gemm's rate by the side of a rank's part of the trailing matrix; if empty, 1
    edge                 rows and columns that a product wastes at its edges
    memory_rate          bytes per second of device memory
    memory_share         share of memory_rate that sparse kernels reach
    launch_s             seconds until a kernel starts, or until the host is notified of its end
    jitter               mean delay of a rank at a sum over all ranks, relative to its work
    generate_rate        entries of A that are regenerated per second during refinement
    core_rate, sync_s    rate of a core in FACT, and seconds per level of a reduction over cores
    exchange_s           seconds per round of FACT's exchange between ranks, without the message
    row_passes           how many times a moved row passes through device memory: 4 in a row-major matrix
    fact                 rate of FACT by NB if a rank's own device factors its panel, as on CPUs; empty if the host does
    cast_rate            bytes per second of rounding to a lower precision; None: memory_rate
    solve_rate           entries of L and U per second in a solve with both; None: limited by memory_rate
    turn_s               seconds per message in this solve, including waits for other ranks; None: latency + exchange_s
    extra_passes         how many times A is regenerated within the timed region, in addition to refinement
    spread               relative uncertainty of compute and network rates, which sets the interval of a prediction
    devices              whether ranks compute on devices in addition to their host's cores
    sources              the source of each number
    base, inherited      the machine on which this one is based, and the keys whose values are inherited
    """

    name: str
    title: str
    nodes: int | None
    ranks_per_node: int
    cores: int
    memory_bytes: float
    memory_rate: float
    network: Network
    gemm: Mapping[str, Curve]
    trsm: Mapping[str, Curve]
    factor: Mapping[str, Curve]
    gemm_share: Mapping[str, Curve] = field(default_factory=dict)
    edge: float = 0.0
    memory_share: float = 1.0
    launch_s: float = 0.0
    jitter: float = 0.0
    generate_rate: float | None = None
    refine_steps: int = 3
    core_rate: float | None = None
    sync_s: float | None = None
    exchange_s: float = 0.0
    row_passes: float = 4.0
    fact: Mapping[str, Curve] = field(default_factory=dict)
    cast_rate: float | None = None
    solve_rate: float | None = None
    turn_s: float | None = None
    extra_passes: int = 0
    spread: tuple[float, float] = (0.05, 0.2)
    devices: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    inherited: tuple[str, ...] = ()

    def curve(self, kernel: str, precision: str) -> Curve:
        """Return the rate curve of a kernel; if there is none, raise a UsageError with the available precisions."""
        curves = self._of(kernel)
        if precision in curves:
            return curves[precision]
        have = f" (it has {', '.join(curves)}); use another precision, or " if curves else "; "
        raise UsageError(
            f"the machine {self.name} has no {kernel} rate in {precision}{have}{self._to_add({kernel: [precision]})}"
        )

    def check_rates(self, benchmark: str, precision: str) -> None:
        """Raise a UsageError that lists all rates that an LU benchmark in this precision needs and that are missing."""
        if not (missing := self._missing_rates(benchmark, precision)):
            return
        others = [name for name in self.gemm if benchmark == "hpl-mxp" and not self._missing_rates(benchmark, name)]
        change = f"use --precision {' or '.join(others)}, or " if others else ""
        raise UsageError(
            f"the machine {self.name} lacks values for {benchmark} in {precision}; {change}{self._to_add(missing)}; "
            "docs/reference/machine-files.md describes the keys"
        )

    def _missing_rates(self, benchmark: str, precision: str) -> dict[str, list[str]]:
        """Return the keys that an LU benchmark in this precision needs and that are missing, by table."""
        stored = stored_as(precision)
        needed = {"gemm": precision, "trsm": stored}
        if benchmark == "hpl-mxp":
            needed["factor"] = stored
        missing = {kernel: [key] for kernel, key in needed.items() if key not in self._of(kernel)}
        if benchmark == "hpl" and not self.fact:  # hosts factor the panels
            panel = [key for key in ("core_rate", "sync_s") if getattr(self, key) is None]
            missing |= {"panel": panel} if panel else {}
        return missing

    def _of(self, kernel: str) -> Mapping[str, Curve]:
        """Return the rate curves of a kernel by precision."""
        curves: Mapping[str, Curve] = getattr(self, kernel)
        return curves

    def _to_add(self, missing: Mapping[str, Sequence[str]]) -> str:
        """Return the hint to add keys to tables of the machine's file; a known machine needs a new file."""
        known = self.name in known_machines()
        name = "mycluster" if known else self.name
        place = f'use a --machine FILE whose table [{name}] contains based_on = "{self.name}", and ' if known else ""
        return f"{place}add " + ", ".join(
            f"{' and '.join(keys)} to [{name}.{table}]" for table, keys in missing.items()
        )

    def gemm_rate(self, precision: str, k: float, side: float) -> float:
        """Return the rate of products with inner dimension k on side×side entries, GEMM_fr in OLCF's eq. 3."""
        share = self.gemm_share.get(precision)
        return self.curve("gemm", precision)(k) * (1.0 if share is None else share(side))

    def varied(self, compute: float, network: float) -> Machine:
        """Return the machine with compute rates multiplied by `compute` and network rates multiplied by `network`."""
        return replace(
            self,
            gemm={name: curve.times(compute) for name, curve in self.gemm.items()},
            trsm={name: curve.times(compute) for name, curve in self.trsm.items()},
            factor={name: curve.times(compute) for name, curve in self.factor.items()},
            fact={name: curve.times(compute) for name, curve in self.fact.items()},
            memory_rate=compute * self.memory_rate,
            core_rate=None if self.core_rate is None else compute * self.core_rate,
            cast_rate=None if self.cast_rate is None else compute * self.cast_rate,
            solve_rate=None if self.solve_rate is None else compute * self.solve_rate,
            exchange_s=self.exchange_s / network,
            turn_s=None if self.turn_s is None else self.turn_s / network,
            network=self.network.times(network),
        )


def known_machines() -> dict[str, Any]:
    """Return the tables of machines.toml by name."""
    return tomllib.loads((files("mxpeak.perf") / "machines.toml").read_text(encoding="utf-8"))


def find_machine(name: str, memory_bytes: float | None = None) -> Machine:
    """Return the known machine `name`, or the machine of a file: FILE with one table, or FILE:NAME with several.

    A file contains tables in the same form as machines.toml. A table may be based on a known machine, or on another
    table of the file. `memory_bytes` is used if the table does not contain the memory per rank. Raise a UsageError for
    an unknown name or an invalid file.
    """
    tables = known_machines()
    if name in tables:
        return machine_from(name, tables, "machines.toml", memory_bytes)
    file, colon, wanted = name.rpartition(":")
    if os.path.exists(name) or not colon or not os.path.exists(file):
        file, wanted = name, ""
    if not os.path.exists(file):
        close = closest(name, tables)
        hint = f"did you mean {close}?" if close else f"use one of {', '.join(tables)}"
        raise UsageError(f"--machine {name} is neither a known machine nor a file; {hint}")
    own = _read(Path(file))
    if not own:
        raise UsageError(
            f"--machine {name} describes no machine; add a table such as [mycluster] with the keys in "
            "docs/reference/machine-files.md"
        )
    if not wanted and len(own) > 1:
        raise UsageError(
            f"--machine {name} describes {len(own)} machines; use {' or '.join(f'{file}:{each}' for each in own)}"
        )
    if wanted and wanted not in own:
        raise UsageError(f"{file} describes no machine {wanted!r}; use {' or '.join(f'{file}:{each}' for each in own)}")
    return machine_from(wanted or next(iter(own)), {**tables, **own}, file, memory_bytes)


def _read(path: Path) -> dict[str, Any]:
    try:
        own = tomllib.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"mxpeak cannot read --machine {path}: {error.strerror}; use another FILE") from None
    except (ValueError, RecursionError) as error:  # also raised for thousands of digits and deep nesting
        raise UsageError(f"--machine {path} is not valid TOML: {error}; correct the file") from None
    for name, table in own.items():
        if not isinstance(table, dict):
            raise UsageError(f"--machine {path}: {name} is outside a table; add a first line such as [mycluster]")
    return own


#: Keys of compute rates, and the relative uncertainty that inherited rates add to a prediction.
COMPUTE = ("memory_rate", "generate_rate", "solve_rate", "cast_rate", "gemm.", "trsm.", "factor.", "fact.", "panel.")
INHERITED_SPREAD = 0.25

#: The numeric keys of a table, with the smallest and largest valid value, and whether the key is required.
NUMBERS: dict[str, tuple[float, float, bool]] = {
    "nodes": (1, 1e6, False),
    "ranks_per_node": (1, 4096, True),
    "cores": (1, 65536, True),
    "memory_bytes": (1e6, 1e15, True),
    "memory_rate": (1e6, 1e15, True),
    "memory_share": (0.01, 1.0, False),
    "launch_s": (0.0, 1.0, False),
    "jitter": (0.0, 1.0, False),
    "generate_rate": (1e3, 1e15, False),
    "refine_steps": (0, 60, False),
    "cast_rate": (1e3, 1e15, False),
    "solve_rate": (1e3, 1e15, False),
    "turn_s": (0.0, 1.0, False),
    "extra_passes": (0, 50, False),
    "devices": (0, 1, False),
    "spread_compute": (0.0, 0.9, False),
    "spread_network": (0.0, 0.9, False),
    "network.nics": (1, 1024, True),
    "network.nic_rate": (1e3, 1e15, True),
    "network.latency_s": (0.0, 1.0, True),
    "network.local_rate": (1e3, 1e15, True),
    "network.local_latency_s": (0.0, 1.0, False),
    "network.host_rate": (1e3, 1e15, False),
    "network.lib_passes": (0.5, 100.0, False),
    "network.ilib_passes": (0.5, 100.0, False),
    "network.lib_overlaps": (0, 1, False),
    "gemm.edge": (0.0, 1e5, False),
    "panel.core_rate": (1e3, 1e15, False),
    "panel.sync_s": (0.0, 1.0, False),
    "panel.exchange_s": (0.0, 1.0, False),
    "panel.row_passes": (1.0, 1000.0, False),
}
WHOLE = (
    "nodes", "ranks_per_node", "cores", "refine_steps", "extra_passes", "devices", "network.nics",
    "network.lib_overlaps",
)  # fmt: skip
CURVES = ("gemm", "gemm_share", "trsm", "factor", "fact")
TABLES = ("network", "panel", *CURVES)
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")


def machine_from(name: str, tables: Table, source: str, memory_bytes: float | None = None) -> Machine:
    """Return the machine of tables[name], completed by the values of its base; raise a UsageError if it is invalid.

    `memory_bytes` is the memory per rank if the table does not contain it.
    """
    table = _based(name, tables, source)
    if memory_bytes is not None and "memory_bytes" not in table:
        table["memory_bytes"] = {"value": memory_bytes, "source": "--mem"}
    reader = _Reader(name, table, source)
    base = tables[name].get("based_on")
    return reader.machine() if base is None else _with_inherited(reader.machine(), tables[name], base)


def _with_inherited(machine: Machine, own: Table, base: str) -> Machine:
    """Return the machine with marks on the sources of inherited values, and with the spread that these values add.

    A spread in the machine's own table is used as it is.
    """
    stated = {f"{key}.{inner}" for key in TABLES for inner in own.get(key, {})} | {key for key in own}
    inherited = tuple(key for key in machine.sources if key not in stated and not key.startswith("spread_"))
    network = any(key.startswith("network.") for key in inherited)
    compute = any(key in COMPUTE or key.startswith(COMPUTE) for key in inherited)
    spread = (
        machine.spread[0] + INHERITED_SPREAD * (compute and "spread_compute" not in own),
        machine.spread[1] + INHERITED_SPREAD * (network and "spread_network" not in own),
    )
    marked = {key: f"inherited from {base}: {machine.sources[key]}" for key in inherited}
    return replace(machine, spread=spread, base=base, inherited=inherited, sources={**machine.sources, **marked})


def _based(name: str, tables: Table, source: str, derived: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the table of a machine with the values of its base; `derived` are the machines based on this one."""
    own = dict(tables[name])
    base = own.pop("based_on", None)
    if base is None:
        return own
    if not isinstance(base, str) or base not in tables or base in (name, *derived):
        raise UsageError(
            f"{source}: [{name}] is based on {base!r}, which is not a complete machine; use the name of a "
            "complete machine"
        )
    merged = {**_based(base, tables, source, (*derived, name)), "title": name}
    for key, value in own.items():
        both = isinstance(value, dict) and key in TABLES
        merged[key] = {**merged.get(key, {}), **value} if both else value
    replaced, kept = own.get("gemm", {}), own.get("gemm_share", {})
    if isinstance(replaced, dict) and isinstance(merged.get("gemm_share"), dict):
        # an inherited share applies only to a GEMM rate that is also inherited
        shares = merged["gemm_share"].items()
        merged["gemm_share"] = {name: share for name, share in shares if name in kept or name not in replaced}
    return merged


class _Reader:
    """Converts a table to a Machine, checks its values, and records their sources."""

    def __init__(self, name: str, table: dict[str, Any], source: str):
        self.name, self.table, self.source = name, table, source
        self.sources: dict[str, str] = {}

    def machine(self) -> Machine:
        self.refuse_unknown()
        self.refuse_missing()
        numbers = {key: number for key in NUMBERS if (number := self.number(key)) is not None}
        if numbers["cores"] < numbers["ranks_per_node"]:
            self.fail(
                "cores",
                f"{numbers['cores']:g} is less than ranks_per_node = {numbers['ranks_per_node']:g}; use at "
                "least one core per rank",
            )
        curves = {kind: self.curves(kind) for kind in CURVES}
        # The last part of a key is the name of a field.
        links = {key.removeprefix("network."): x for key, x in numbers.items() if key.startswith("network.")}
        own = {key.rpartition(".")[2]: x for key, x in numbers.items() if not key.startswith(("network.", "spread_"))}
        lib_passes = links.get("lib_passes", 2.0)
        defaults = {
            "local_latency_s": links["latency_s"],
            "host_rate": links["local_rate"],
            "lib_passes": lib_passes,
            "ilib_passes": lib_passes,
        }
        network = Network(**{**defaults, **links, "lib_overlaps": bool(links.get("lib_overlaps"))})
        own["devices"] = bool(own.get("devices", not curves["fact"]))
        spread = numbers.get("spread_compute", 0.05), numbers.get("spread_network", 0.2)
        title, nodes = str(self.table.get("title", self.name)), own.pop("nodes", None)
        return Machine(
            name=self.name, title=title, nodes=nodes, network=network, spread=spread, sources=self.sources,
            **own | curves,
        )  # fmt: skip

    def refuse_unknown(self) -> None:
        keys = [(key, value) for key, value in self.table.items() if key not in TABLES]
        for part in TABLES:
            inner = self.table.get(part, {})
            if not isinstance(inner, dict):
                self.fail(part, f"{inner!r} is not a table; use [{self.name}.{part}]")
            keys += [(f"{part}.{key}", value) for key, value in inner.items()]
        allowed = {"title", *NUMBERS, *(f"{kind}.{precision}" for kind in CURVES for precision in PRECISIONS)}
        for key, _ in keys:
            if key not in allowed:
                close = closest(key, allowed)
                self.fail(key, f"the key is unknown; did you mean {close}?" if close else "unknown")

    def refuse_missing(self) -> None:
        """Raise an error that lists all required keys that the table does not contain."""
        missing = [key for key, (*_, needed) in NUMBERS.items() if needed and self.value(key, "value") is None]
        gemm = self.table.get("gemm", {})
        if not any(precision in gemm for precision in PRECISIONS):
            missing.append("a curve of gemm, such as gemm.fp64 = [[NB, FLOP/s], ...]")
        if not missing:
            return
        text = f"add {', '.join(missing)}; docs/reference/machine-files.md describes the keys"
        if "memory_bytes" in missing:
            text += "; instead of memory_bytes, you can use --mem 64GiB for the memory per rank"
        self.fail(f"{len(missing)} missing key{'s' * (len(missing) > 1)}", text)

    def number(self, key: str) -> Any:
        least, largest, _ = NUMBERS[key]
        value = self.value(key, "value")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= largest:
            self.fail(key, f"{value!r} is not valid; use a number from {least:g} to {largest:g}")
        if key in WHOLE and value != int(value):
            self.fail(key, f"{value!r} is not an integer; use an integer")
        return int(value) if key in WHOLE else float(value)

    def curves(self, kind: str) -> dict[str, Curve]:
        curves = {}
        for precision in PRECISIONS:
            points = self.value(f"{kind}.{precision}", "points")
            if points is not None:
                curves[precision] = self.curve(f"{kind}.{precision}", points)
        return curves

    def curve(self, key: str, points: Any) -> Curve:
        if isinstance(points, int | float) and not isinstance(points, bool):
            points = [[1, points]]
        pairs = points if isinstance(points, list) else []
        numeric = [
            pair
            for pair in pairs
            if isinstance(pair, list) and len(pair) == 2 and all(type(x) in (int, float) and x > 0 for x in pair)
        ]
        if not pairs or len(numeric) < len(pairs):
            self.fail(key, f"{points!r} is not a curve; use a rate, or points [[size, rate], ...], all above 0")
        sizes = [pair[0] for pair in pairs]
        if sorted(set(sizes)) != sizes:
            self.fail(key, f"the sizes {sizes} are not in increasing order; use points sorted by size")
        if key.startswith("gemm_share.") and max(pair[1] for pair in pairs) > 1.0:
            self.fail(
                key, f"{points!r} contains a share above 1; use the best rate in gemm and shares of that rate here"
            )
        if max(pair[1] for pair in pairs) > 1e18:
            self.fail(key, "a rate is above 1e18 FLOP/s for one rank; use FLOP/s, not TFLOP/s")
        return Curve(tuple((float(x), float(y)) for x, y in pairs))

    def value(self, key: str, inner: str) -> Any:
        """Return the value of a dotted key, alone or in { value | points = ..., source = ... }; record its source."""
        value: Any = self.table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict):
            if inner not in value:
                self.fail(key, f"{value!r} has no {inner}; use {{ {inner} = ..., source = '...' }}")
            self.sources[key] = str(value.get("source", "not stated"))
            return value[inner]
        if value is not None:
            self.sources[key] = "not stated"
        return value

    def fail(self, key: str, why: str) -> NoReturn:
        raise UsageError(f"{self.source}: [{self.name}] {key}: {why}")
