"""Store results as Result objects and as JSON, and format numbers for users."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mxpeak.foreign import UNSAFE

SCHEMA_RESULT = "mxpeak.result/1"
SCHEMA_RESULTS = "mxpeak.results/1"
#: Measures of a scan in byte/s: memory reads, and copies from a device to the host and from the host to a device.
SCANNED_BYTES = ("read", "d2h", "h2d")
#: SI prefixes of rates above G, the largest first.
PREFIXES = (("E", 1e18), ("P", 1e15), ("T", 1e12))


def three_digits(value: float | None) -> str:
    """Format a number with three significant digits, without an exponent from 0.001 to 1,000,000.

    None and numbers that are not finite become "none".
    """
    if value is None or not math.isfinite(value):
        return "none"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:.{digits}f}"


def rate_text(rate_flops: float | None) -> str:
    """Format a rate in GFLOP/s, TFLOP/s, PFLOP/s or EFLOP/s, with three significant digits."""
    return _scaled(rate_flops, "FLOP/s", PREFIXES)


def bytes_rate_text(rate_bytes: float | None) -> str:
    """Format a rate in GB/s, TB/s or PB/s, with three significant digits."""
    return _scaled(rate_bytes, "B/s", PREFIXES[1:])


def _scaled(rate: float | None, unit: str, prefixes: Sequence[tuple[str, float]]) -> str:
    """Format a rate with three significant digits and an SI prefix, such as 1.23 TFLOP/s.

    `prefixes` contains the prefixes above G and their factors, the largest first. Rates below the smallest of these
    factors have the prefix G. For None, the text is "no rate".
    """
    if rate is None:
        return "no rate"
    prefix, size = next((prefix for prefix in prefixes if rate >= 0.9995 * prefix[1]), ("G", 1e9))
    return f"{three_digits(rate / size)} {prefix}{unit}"


def figure_text(figures: Mapping[str, Any]) -> str:
    """Format the rate of a result or of its limit, in flop/s or bytes/s."""
    if "rate_bytes" in figures:
        return bytes_rate_text(figures["rate_bytes"])
    if figures.get("rate_flops") is None:  # a standalone solver has a raw rate, but no rating
        raw = next((rate for key in ("raw_rate_flops", "double_rate_flops") if (rate := figures.get(key))), None)
        return "no rate" if raw is None else f"raw {rate_text(raw)}"
    return rate_text(figures["rate_flops"])


def fp64_scheme(figures: Mapping[str, Any]) -> str:
    """Return the scheme and the bits that emulate the fp64 products of a result; empty if the products are native."""
    if figures.get("fp64") != "emulated":
        return ""
    of = figures.get("fp64_emulation") or {}
    bits = "number of bits unknown" if of.get("scheme") is None else "bits chosen per product"
    bits = f"{of['bits']} bits" if of.get("bits") else bits
    return f"{of.get('scheme') or 'scheme unknown'}, {bits}"


def is_native_hpl(result: Result) -> bool:
    """Return whether this is a passed result of HPL in native fp64, with which HPL-MxP can be compared."""
    return result.benchmark == "hpl" and result.passed and result.result.get("fp64") != "emulated"


def drifted(figures: Mapping[str, Any]) -> bool:
    """Return whether the machine's speed changed so much that the result's share of the limit is uncertain."""
    limit = figures.get("limit")
    return isinstance(limit, Mapping) and limit.get("drifted") is True


def size_text(size_bytes: float) -> str:
    """Format a size in GiB, or in MiB below 1 GiB."""
    size, digits, unit = (size_bytes / 2**30, 4, "GiB") if size_bytes >= 2**30 else (size_bytes / 2**20, 3, "MiB")
    number = f"{size:.0f}" if size >= 10**digits - 0.5 else f"{size:.{digits}g}"  # without an exponent
    return f"{number} {unit}"


def read_json(text: str | bytes) -> Any:
    """Parse a JSON text and return its content.

    Raise a ValueError if the text is not JSON, or if other programs could not represent its content or would read
    different content. This concerns NaN, Infinity, numbers beyond 64 bits or fp64, duplicate keys, and nesting deeper
    than DEEPEST.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if text.count("{") + text.count("[") > MAX_CONTAINERS or text.count(",") > MAX_ITEMS:
        raise ValueError(f"it has more than {MAX_CONTAINERS} arrays and objects, or more than {MAX_ITEMS} items")
    try:
        content = json.loads(
            text, parse_constant=_reject_constant, parse_int=_integer, parse_float=_real, object_pairs_hook=_object
        )
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check_depth(content)
    return content


#: Maximum numbers of containers in a JSON text, and of items in all containers. A text with these numbers needs less
#: than 500 MB.
MAX_CONTAINERS, MAX_ITEMS = 1_000_000, 4_000_000
#: Maximum nesting depth of arrays and objects; result files have nine levels.
DEEPEST = 50
TOO_DEEP = "its brackets are nested too deeply"
#: Largest unsigned integer of 64 bits.
MAX_INTEGER = 2**64 - 1


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > 20 or abs(value := int(digits)) > MAX_INTEGER:
        raise ValueError(f"{digits[:20]}… is an integer of more than 64 bits")
    return value


def _real(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits[:20]} is beyond the range of fp64")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:60]!r} occurs twice in one object")
    return content


def _check_depth(value: Any) -> None:
    """Raise a ValueError if JSON data is nested deeper than DEEPEST, because recursive functions could fail."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise ValueError(TOO_DEEP)


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning about a result, with advice.

    Attributes
    ----------
    code : str
        Short identifier of the warning, such as "not-finite".
    text : str
        Description of the problem.
    hint : str
        Advice on how to resolve the problem, or an empty string.
    """

    code: str
    text: str
    hint: str = ""


#: Statuses of results that passed the validation.
PASSED = ("valid", "slow")


def mark(status: str) -> str:
    """Return the word that mxpeak prints for a status, such as PASSED for "valid"."""
    return {"valid": "PASSED", "slow": "TOO SLOW", "invalid": "FAILED"}.get(status, "ABORTED")


@dataclass(slots=True, kw_only=True, repr=False)
class Result:
    """The result of one benchmark case, organized into the same sections as the result file.

    Attributes
    ----------
    benchmark : str
        Name of the benchmark, such as "hpl".
    status : str
        Status of the result: "valid", "slow", "invalid" or "aborted". A slow result is valid, but below the requested
        rate or share of the limit.
    passed : bool
        Whether the result passed the validation.
    mark : str
        Status in the form that mxpeak prints.
    run : dict
        Command of the run, with its start and end times.
    problem : dict
        Size and type of the problem.
    result : dict
        Main measurements, such as the rate, the time and the limit.
    validation : dict
        Results of the validation, such as the residual and its threshold.
    rules : dict
        Whether the result complies with the published rules, and which rules it violates. This section is empty for
        benchmarks without published rules.
    samples_s : list of float
        Time of each repetition, in seconds.
    phases : dict
        Time, number of operations and number of bytes for each phase.
    config : dict
        Value and origin of each setting.
    machine : dict
        Processors, memory and devices of the machine.
    software : dict
        Versions of mxpeak and of the libraries that it uses.
    launch : dict
        Launcher, ranks, process grid and core binding of the run.
    telemetry : dict
        Data recorded during the run, such as progress and energy.
    warnings : list of Caution
        Warnings about the result, with advice.
    """

    benchmark: str
    status: str  # valid | slow (valid, but below a requested minimum) | invalid | aborted
    run: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)  # rules of a public list of results; otherwise empty
    samples_s: list[float] = field(default_factory=list)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    software: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    telemetry: dict[str, Any] = field(default_factory=dict)
    warnings: list[Caution] = field(default_factory=list)

    def __repr__(self) -> str:
        dense = ("kind", "structure", "dtype", "m", "n", "nb", "P", "Q", "matrix")
        sparse = ("nx", "ny", "nz", "npx", "npy", "npz", "storage", "precision")
        sizes = {key: value for key in (*dense, *sparse) if isinstance(value := self.problem.get(key), int | str)}
        size = ", ".join(f"{key}={value}" for key, value in sizes.items())
        return f"Result({self.benchmark}, {self.status}, {figure_text(self.result)}, {size})"

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: rate, share of the limit and residual."""
        import html  # a table of 2,000 characters, which `mxpeak --help` does not need

        share, residual = self.result.get("fraction_of_limit"), self.validation.get("residual")
        rows = {
            "benchmark": self.benchmark,
            "status": self.mark,
            "rate": figure_text(self.result),
            "of its limit": "" if share is None else f"{three_digits(100 * share)} %",
            "residual": "" if residual is None else three_digits(residual),
        }
        cells = "".join(
            f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items() if value
        )
        return f"<table>{cells}</table>"

    @property
    def passed(self) -> bool:
        """Return whether the result passed the validation."""
        return self.status in PASSED

    @property
    def mark(self) -> str:
        """Return the word that mxpeak prints for the status: PASSED, UNRATED, TOO SLOW, FAILED or ABORTED.

        UNRATED is a run without a validation of its rate.
        """
        return "UNRATED" if self.passed and self.validation.get("type") == "none" else mark(self.status)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Result:
        """Create a result from a dictionary that `as_dict` returned.

        Parameters
        ----------
        body : mapping
            Dictionary with the sections of the result. `from_dict` ignores unknown keys and leaves missing sections
            empty.

        Returns
        -------
        Result
            The result that the dictionary describes.
        """
        names = {f.name for f in dataclasses.fields(cls)} & set(body)
        warnings = body.get("warnings")
        cautions = [w for w in (warnings if isinstance(warnings, list) else []) if isinstance(w, Mapping)]
        warnings = [Caution(*(str(w.get(name) or "") for name in ("code", "text", "hint"))) for w in cautions]
        return cls(**{"benchmark": "", "status": "", **{name: body[name] for name in names}, "warnings": warnings})

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary that can be stored as JSON.

        NaN and infinite values become None, and each of them adds a warning.

        Returns
        -------
        dict
            Dictionary with the sections of the result.
        """
        lost: list[Caution] = []
        body = {"schema": SCHEMA_RESULT, **_plain(dataclasses.asdict(self), "", lost)}
        body["warnings"] += [dataclasses.asdict(caution) for caution in lost]
        return body


def _plain(value: Any, path: str, lost: list[Caution]) -> Any:
    """Return a value that JSON can represent; append a caution to `lost` for each value that JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(Caution("not-finite", f"{path} is not a finite number; written as null"))
        return None
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item, f"{path}.{key}".lstrip("."), lost) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{k}]", lost) for k, item in enumerate(value)]
    for number in ("tolist", "item"):  # arrays, and scalars of array libraries
        if callable(convert := getattr(value, number, None)):
            return _plain(convert(), path, lost)
    lost.append(Caution("not-json", f"{path} is of type {type(value).__name__}; written as text"))
    return str(value)


def document(results: Sequence[Result], *, several: bool = False) -> dict[str, Any]:
    """Return the content of a result file for these results.

    In this release, the content for a single case (without `several`) also has the keys of the case at the top level.
    These keys are deprecated.
    """
    bodies = [r.as_dict() for r in results]
    alone = bodies[0] if len(bodies) == 1 and not several else {}
    return {**alone, "schema": SCHEMA_RESULTS, "results": bodies}


def results_of(body: Any) -> list[dict[str, Any]]:
    """Return the results in the content of a result file. Files of an older version contain one result without a list.

    A null key counts as missing. Raise a ValueError if the content is not that of a result file.
    """
    if not isinstance(body, Mapping) or not str(body.get("schema", "")).startswith("mxpeak.result"):
        raise ValueError("its schema is not that of a result file")
    results = body.get("results", [body])
    if not isinstance(results, list) or not all(isinstance(result, Mapping) for result in results):
        raise ValueError("its results are not a list")
    return [{name: value for name, value in result.items() if value is not None} for result in results]


def to_json(body: Mapping[str, Any]) -> str:
    r"""Format a dictionary as JSON with all digits and without NaN.

    Control characters and bytes that are not UTF-8 become \u escapes.
    """
    text = json.dumps(body, indent=2, allow_nan=False, ensure_ascii=False)
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"
