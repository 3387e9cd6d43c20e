"""Tuned settings by benchmark and layout: select the settings for a run, and store all settings as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from mxpeak.records import read_json

SCHEMA = "mxpeak.tuned/1"
#: Maximum ratio between the size of a run and the size of the tuned problem, for orders and for points of a box.
COMPARABLE_N, COMPARABLE_POINTS = 4.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The fastest settings of one benchmark on one layout. `settings` is empty if the defaults are the fastest.

    any_layout   whether the search included ranks and threads; the settings then apply to runs that set neither
    size         size of the tuned problem: {"n": …} or {"nx": …, "ny": …, "nz": …}
    precision    precision of the products in HPL-MxP
    settings     settings as values of their flags
    library      file of the BLAS library in `settings`, its number of bytes, and the time of its last modification in
                 nanoseconds; empty for SciPy's BLAS
    gain         measured gain over the defaults; 0 if the defaults failed
    runs_left    number of runs by which the search and its check were cut short; 0 if they have ended
    """

    benchmark: str
    mode: str
    device: str
    ranks: int
    threads: int
    any_layout: bool
    size: Mapping[str, int]
    settings: Mapping[str, str]
    library: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    rate_flops: float = 0.0
    gain: float = 0.0
    verdict: str = ""
    when: str = ""
    runs_left: int = 0

    @property
    def key(self) -> str:
        """Return the key of the winner: benchmark, mode, device and layout."""
        layout = "any" if self.any_layout else f"{self.ranks}x{self.threads}"
        return f"{self.benchmark} {self.mode} {self.device} {layout}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeeds:
    """The properties of a run that decide whether tuned settings apply.

    ranks, threads        None: any number matches
    open_layout           whether tuned settings may set ranks and threads
    n, shape, precision   None if not set
    open_n                whether tuned settings may set N, so that `n` is only an estimate
    blas                  the BLAS library of the run, or None if tuned settings may set it
    """

    benchmark: str
    mode: str
    device: str
    ranks: int | None
    threads: int | None
    open_layout: bool = False
    n: tuple[int, ...] | None = None
    open_n: bool = False
    shape: tuple[int, int, int] | None = None
    precision: tuple[str, ...] | None = None
    blas: str | None = "scipy"


def winner_for(winners: Iterable[Winner], wanted: RunNeeds) -> tuple[Winner | None, str]:
    """Return the winner whose settings apply to a run, or None, and a reason.

    The reason is empty if a winner applies or if there is no winner for this benchmark and layout. Otherwise, it
    states why the first winner does not fit.
    """
    candidates = [
        winner
        for winner in winners
        if (winner.benchmark, winner.mode, winner.device) == (wanted.benchmark, wanted.mode, wanted.device)
        and ((wanted.open_layout and winner.any_layout) or _on_layout(winner, wanted))
    ]
    # If the run leaves the layout open, winners over all layouts come first, otherwise winners for one layout.
    candidates.sort(key=lambda winner: winner.any_layout != wanted.open_layout)
    reasons = [misfit(winner, wanted) for winner in candidates]
    for winner, reason in zip(candidates, reasons):
        if not reason:
            return winner, ""
    return None, reasons[0] if reasons else ""


def _on_layout(winner: Winner, wanted: RunNeeds) -> bool:
    return wanted.ranks in (None, winner.ranks) and wanted.threads in (None, winner.threads)


def misfit(winner: Winner, wanted: RunNeeds) -> str:
    """Return the reason why a winner does not fit a run of its benchmark; empty if it fits.

    The reason is the BLAS library, the precision or the size.
    """
    measured = winner.settings.get("blas", "scipy")
    if wanted.blas is not None and not _is_library(wanted.blas, measured, winner.library.get("file")):
        return f"they were measured with {_library(measured)}, not with {_library(wanted.blas)}"
    if wanted.precision is not None and winner.precision and set(wanted.precision) != {winner.precision}:
        return f"tuned in {winner.precision}, not {','.join(wanted.precision)}"
    sets_n = wanted.open_n and "n" in winner.settings
    if wanted.n is not None and "n" in winner.size and not sets_n:
        n = winner.size["n"]
        far = [order for order in wanted.n if not n / COMPARABLE_N <= order <= n * COMPARABLE_N]
        if far:
            return f"tuned at N = {n}, more than a factor of {COMPARABLE_N:g} from N = {far[0]}"
    if wanted.shape is not None and "nx" in winner.size:
        points, points_here = prod(winner.size.values()), prod(wanted.shape)
        if not points / COMPARABLE_POINTS <= points_here <= points * COMPARABLE_POINTS:
            return (f"tuned on {'x'.join(map(str, winner.size.values()))} points per rank, more than "
                    f"a factor of {COMPARABLE_POINTS:g} from {'x'.join(map(str, wanted.shape))}")  # fmt: skip
    return ""


def _is_library(name: str, measured: str, file: str | None) -> bool:
    """Return whether a name or path of a BLAS library means the measured one, whose file is `file`."""
    if name == measured:
        return True
    return file is not None and os.sep in name and os.path.realpath(name) == os.path.realpath(file)


def _library(name: str) -> str:
    """Return the name of a BLAS library in a sentence."""
    return "SciPy's BLAS" if name == "scipy" else name


@dataclass(slots=True)
class Winners:
    """The winners on machines with one fingerprint, by key."""

    facts: Mapping[str, Any]
    winners: dict[str, Winner] = field(default_factory=dict)

    def add(self, winner: Winner) -> None:
        """Add a winner, and replace an older winner with the same key."""
        self.winners[winner.key] = winner

    def text(self) -> str:
        """Return the facts of the fingerprint and all winners as JSON."""
        body = {
            "schema": SCHEMA,
            "fingerprint": self.facts,
            "winners": [asdict(winner) for winner in self.winners.values()],
        }
        return json.dumps(body, indent=2, allow_nan=False) + "\n"


class InvalidWinnersError(ValueError):
    """Raised if a file is not a valid list of winners for this machine; the message describes the error."""


def read_winners(text: str, facts: Mapping[str, Any]) -> Winners:
    """Parse the text of a file of winners.

    Raise InvalidWinnersError if the text is invalid or belongs to another machine.
    """
    try:
        body = read_json(text)
    except ValueError as error:
        raise InvalidWinnersError(f"it is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        schema = body.get("schema") if isinstance(body, dict) else type(body).__name__
        raise InvalidWinnersError(f"its schema is {schema!r}, not {SCHEMA!r}")
    if body.get("fingerprint") != facts:
        raise InvalidWinnersError("it was written on another machine, or with other software")
    try:
        winners = [_winner(winner) for winner in body["winners"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidWinnersError(f"a winner is not valid: {error}") from None
    return Winners(facts, {winner.key: winner for winner in winners})


#: Type of each field of a winner.
_TYPES: dict[str, tuple[type, ...]] = {
    "benchmark": (str,), "mode": (str,), "device": (str,), "precision": (str,), "verdict": (str,), "when": (str,),
    "ranks": (int,), "threads": (int,), "any_layout": (bool,), "size": (dict,), "settings": (dict,),
    "library": (dict,), "rate_flops": (int, float), "gain": (int, float), "runs_left": (int,),
}  # fmt: skip

_LIBRARY_TYPES = {"file": str, "bytes": int, "modified_ns": int}


def _winner(body: Mapping[str, Any]) -> Winner:
    for name, value in body.items():
        if name in _TYPES and not isinstance(value, _TYPES[name]):
            raise TypeError(f"{name} is {value!r}")
    winner = Winner(**body)
    if not all(isinstance(n, int) and n > 0 for n in winner.size.values()):
        raise TypeError(f"size is {dict(winner.size)!r}")
    if not all(isinstance(text, str) for text in winner.settings.values()):
        raise TypeError(f"settings are {dict(winner.settings)!r}")
    types = {name: type(value) for name, value in winner.library.items()}
    if winner.library and (types != _LIBRARY_TYPES or "blas" not in winner.settings):
        raise TypeError(f"library is {dict(winner.library)!r}")
    return winner


def read_journal(text: str) -> tuple[list[dict[str, Any]], int]:
    """Parse a journal with one JSON object per line, and return its records and the number of invalid lines."""
    records, bad = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            record = read_json(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            records.append(record)
        else:
            bad += 1
    return records, bad
