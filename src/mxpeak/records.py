"""What comes out of a run: Result, as JSON and back, and numbers as people read them."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_RESULT = "mxpeak.result/1"
SCHEMA_RESULTS = "mxpeak.results/1"
#: The parts of a result that are objects.
SECTIONS = (
    "run", "problem", "result", "validation", "rules", "phases", "config", "machine", "software", "launch", "telemetry",
)  # fmt: skip
#: The figures that every table shows.
FIGURES = ("rate_flops", "rate_bytes", "time_s", "fraction_of_limit")


# --- numbers for people -----------------------------------------------------------------------------------------


def three_digits(value: float | None) -> str:
    """A number as people read it: three significant digits, no exponent between a thousandth and a million."""
    if value is None or not math.isfinite(value):
        return "none"
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    rounded = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:.{digits}f}"


def rate_text(rate_flops: float | None) -> str:
    """A rate in GFLOP/s, or in the larger SI unit that fits it."""
    if rate_flops is None:
        return "no rate"
    for unit, size in (("EFLOP/s", 1e18), ("PFLOP/s", 1e15), ("TFLOP/s", 1e12)):
        if rate_flops >= 0.9995 * size:
            return f"{three_digits(rate_flops / size)} {unit}"
    return f"{three_digits(rate_flops / 1e9)} GFLOP/s"


def bytes_rate_text(rate_bytes: float | None) -> str:
    """A rate in GB/s, or in the larger SI unit that fits it."""
    if rate_bytes is None:
        return "no rate"
    for unit, size in (("PB/s", 1e15), ("TB/s", 1e12)):
        if rate_bytes >= 0.9995 * size:
            return f"{three_digits(rate_bytes / size)} {unit}"
    return f"{three_digits(rate_bytes / 1e9)} GB/s"


def figure_text(figures: Mapping[str, Any]) -> str:
    """The rate of a result, or of its limit, in flops or in bytes a second, whichever it has."""
    if "rate_bytes" in figures:
        return bytes_rate_text(figures["rate_bytes"])
    return rate_text(figures.get("rate_flops"))


def drifted(figures: Mapping[str, Any]) -> bool:
    """Return whether the machine's speed changed so much that the share of the limit is uncertain."""
    limit = figures.get("limit")
    return isinstance(limit, Mapping) and limit.get("drifted") is True


def size_text(size_bytes: float) -> str:
    """A size in GiB, or in MiB below one."""
    return f"{size_bytes / 2**30:.4g} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.3g} MiB"


def read_json(text: str | bytes) -> Any:
    """What a text says as JSON; a ValueError if it is none, has NaN or Infinity, or is nested by the thousand."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


# --- what comes out ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caution:
    """Something a reader of the result should know, and how to fix it."""

    code: str
    text: str
    hint: str = ""


#: The statuses of results whose validation passed.
PASSED = ("valid", "slow")


def mark(status: str) -> str:
    """The word for a status."""
    return {"valid": "PASSED", "slow": "TOO SLOW", "invalid": "FAILED"}.get(status, "ABORTED")


@dataclass(slots=True, kw_only=True, repr=False)
class Result:
    """What one run of one case gave, in the sections of the result file."""

    benchmark: str
    status: str  # valid | slow (valid, but below a floor that was asked for) | invalid | aborted
    run: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)  # of a list of results, such as HPL-MxP's; else empty
    samples_s: list[float] = field(default_factory=list)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    software: dict[str, Any] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    telemetry: dict[str, Any] = field(default_factory=dict)
    warnings: list[Caution] = field(default_factory=list)

    def __repr__(self) -> str:
        names = (
            "kind",
            "structure",
            "dtype",
            "m",
            "n",
            "nb",
            "P",
            "Q",
            "matrix",
            "nx",
            "ny",
            "nz",
            "npx",
            "npy",
            "npz",
            "storage",
            "precision",
        )
        known = {key: value for key in names if isinstance(value := self.problem.get(key), int | str)}
        size = ", ".join(f"{key}={value}" for key, value in known.items())
        return f"Result({self.benchmark}, {self.status}, {figure_text(self.result)}, {size})"

    def _repr_html_(self) -> str:
        """The result in a notebook: what it is, how fast, what share of its limit, how accurate."""
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
        """Whether the validation passed."""
        return self.status in PASSED

    @property
    def mark(self) -> str:
        """The status as people read it."""
        return mark(self.status)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Result:
        """The result that `as_dict` wrote; keys of a later schema are left out."""
        known = {f.name for f in dataclasses.fields(cls)} & set(body)
        said = body.get("warnings")
        told = [w for w in (said if isinstance(said, list) else []) if isinstance(w, Mapping)]
        warnings = [Caution(*(str(w.get(name) or "") for name in ("code", "text", "hint"))) for w in told]
        return cls(**{**{name: body[name] for name in known}, "warnings": warnings})

    def as_dict(self) -> dict[str, Any]:
        """The result as plain data, ready for JSON: no NaN, no infinity; each one found becomes null and a warning."""
        lost: list[str] = []
        body = {"schema": SCHEMA_RESULT, **_finite(dataclasses.asdict(self), "", lost)}
        for path in lost:
            text = f"{path} is not a finite number; written as null"
            body["warnings"].append({"code": "not-finite", "text": text, "hint": ""})
        return body


def _finite(value: Any, path: str, lost: list[str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(path)
        return None
    if isinstance(value, dict):
        return {key: _finite(item, f"{path}.{key}".lstrip("."), lost) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}[{k}]", lost) for k, item in enumerate(value)]
    return value


def document(results: Sequence[Result], *, several: bool = False) -> dict[str, Any]:
    """The content of a result file: the list of results.

    In this release that of a single case (not with `several`) has the case's keys at its top, too: they will go.
    """
    found = [r.as_dict() for r in results]
    alone = found[0] if len(found) == 1 and not several else {}
    return {**alone, "schema": SCHEMA_RESULTS, "results": found}


def results_of(body: Any) -> list[Mapping[str, Any]]:
    """The results in the content of a result file, also in one of an older version: there one stood alone.

    A section that is null is taken as empty.  A ValueError if the content is not that of a result file.
    """
    if not isinstance(body, Mapping) or not str(body.get("schema", "")).startswith("mxpeak.result"):
        raise ValueError("its schema is not that of a result file")
    found = body.get("results", [body])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise ValueError("its results are no list of them")
    if odd := [one for one in found if not isinstance(one.get("benchmark", ""), str)]:
        raise ValueError(f"{odd[0]['benchmark']!r} is no name of a benchmark")
    return [{**one, **_sections(one)} for one in found]


def _sections(one: Mapping[str, Any]) -> dict[str, Any]:
    sections = {name: one[name] if one[name] is not None else {} for name in SECTIONS if name in one}
    if odd := [name for name, section in sections.items() if not isinstance(section, Mapping)]:
        raise ValueError(f"{odd[0]} is no object")
    figures = sections.get("result", {})
    if odd := [name for name in FIGURES if not isinstance(figures.get(name), int | float | None)]:
        raise ValueError(f"{odd[0]} is no number")
    return sections


def to_json(body: Mapping[str, Any]) -> str:
    """JSON with all digits and no NaN."""
    return json.dumps(body, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
