"""What was tuned: winners by benchmark and layout, whether one fits a request, and how they are kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from mxpeak.records import read_json

SCHEMA = "mxpeak.tuned/1"
#: How many times as large, or as small, a problem may be as the one that was tuned: orders, and points of a box.
COMPARABLE_N, COMPARABLE_POINTS = 4.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The fastest settings found for one benchmark on one layout; none where the defaults are not beaten.

    any_layout   whether ranks and threads were searched too: it then serves a run that leaves both open
    size         of the problem: {"n": …} or {"nx": …, "ny": …, "nz": …}
    precision    in which HPL-MxP's products were made
    settings     as their flags would be typed
    gain         over the defaults, as the check found it
    """

    benchmark: str
    mode: str
    device: str
    ranks: int
    threads: int
    any_layout: bool
    size: Mapping[str, int]
    settings: Mapping[str, str]
    precision: str = ""
    rate_flops: float = 0.0
    gain: float = 0.0
    verdict: str = ""
    when: str = ""

    @property
    def key(self) -> str:
        """What it is the winner of."""
        layout = "any" if self.any_layout else f"{self.ranks}x{self.threads}"
        return f"{self.benchmark} {self.mode} {self.device} {layout}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request, as far as it decides whether a winner fits.

    ranks, threads   of the run; None: whatever the winner has, which its launcher decides
    open_layout      whether a winner may say both: those are then what a run has where none does
    n, shape, precision   None where they were left open
    """

    benchmark: str
    mode: str
    device: str
    ranks: int | None
    threads: int | None
    open_layout: bool = False
    n: tuple[int, ...] | None = None
    shape: tuple[int, int, int] | None = None
    precision: tuple[str, ...] | None = None


def winner_for(winners: Iterable[Winner], wanted: Wanted) -> tuple[Winner | None, str]:
    """The winner that a request takes; None with the reason where there is one for it that does not fit its size."""
    found = [
        one
        for one in winners
        if (one.benchmark, one.mode, one.device) == (wanted.benchmark, wanted.mode, wanted.device)
        and ((wanted.open_layout and one.any_layout) or _on_layout(one, wanted))
    ]
    found.sort(key=lambda one: one.any_layout != wanted.open_layout)  # the search of what is asked for goes first
    reasons = [misfit(one, wanted) for one in found]
    for one, reason in zip(found, reasons):
        if not reason:
            return one, ""
    return None, reasons[0] if reasons else ""


def _on_layout(winner: Winner, wanted: Wanted) -> bool:
    return wanted.ranks in (None, winner.ranks) and wanted.threads in (None, winner.threads)


def misfit(winner: Winner, wanted: Wanted) -> str:
    """Why a winner is not for a request of its benchmark; empty where it is."""
    if wanted.precision is not None and winner.precision and set(wanted.precision) != {winner.precision}:
        return f"tuned in {winner.precision}, not {','.join(wanted.precision)}"
    if wanted.n is not None and "n" in winner.size:
        n = winner.size["n"]
        far = [one for one in wanted.n if not n / COMPARABLE_N <= one <= n * COMPARABLE_N]
        if far:
            return f"tuned at N = {n}, more than a factor of {COMPARABLE_N:g} from N = {far[0]}"
    if wanted.shape is not None and "nx" in winner.size:
        points, asked = prod(winner.size.values()), prod(wanted.shape)
        if not points / COMPARABLE_POINTS <= asked <= points * COMPARABLE_POINTS:
            return (f"tuned on {'x'.join(map(str, winner.size.values()))} points per rank, more than "
                    f"a factor of {COMPARABLE_POINTS:g} from {'x'.join(map(str, wanted.shape))}")  # fmt: skip
    return ""


# --- as a file --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Book:
    """The winners of one fingerprint, by key."""

    facts: Mapping[str, Any]
    winners: dict[str, Winner] = field(default_factory=dict)

    def add(self, winner: Winner) -> None:
        """Keep a winner in place of an older one of the same."""
        self.winners[winner.key] = winner

    def text(self) -> str:
        """As JSON."""
        body = {"schema": SCHEMA, "fingerprint": self.facts, "winners": [asdict(one) for one in self.winners.values()]}
        return json.dumps(body, indent=2, allow_nan=False) + "\n"


class BadBookError(ValueError):
    """A file that is no book of winners, or that of another machine; the text says what is wrong."""


def read_book(text: str, facts: Mapping[str, Any]) -> Book:
    """The book that `Book.text` wrote on a machine with these facts; anything else is a BadBookError."""
    try:
        body = read_json(text)
    except ValueError as error:
        raise BadBookError(f"it is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema") if isinstance(body, dict) else type(body).__name__
        raise BadBookError(f"its schema is {found!r}, not {SCHEMA!r}")
    if body.get("fingerprint") != facts:
        raise BadBookError("it was written on another machine, or with other software")
    try:
        winners = [_winner(one) for one in body["winners"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadBookError(f"a winner is not valid: {error}") from None
    return Book(facts, {one.key: one for one in winners})


#: The type of what a winner says.
_TYPES: dict[str, tuple[type, ...]] = {
    "benchmark": (str,), "mode": (str,), "device": (str,), "precision": (str,), "verdict": (str,), "when": (str,),
    "ranks": (int,), "threads": (int,), "any_layout": (bool,), "size": (dict,), "settings": (dict,),
    "rate_flops": (int, float), "gain": (int, float),
}  # fmt: skip


def _winner(body: Mapping[str, Any]) -> Winner:
    for name, value in body.items():
        if name in _TYPES and not isinstance(value, _TYPES[name]):
            raise TypeError(f"{name} is {value!r}")
    winner = Winner(**body)
    if not all(isinstance(n, int) and n > 0 for n in winner.size.values()):
        raise TypeError(f"size is {dict(winner.size)!r}")
    if not all(isinstance(text, str) for text in winner.settings.values()):
        raise TypeError(f"settings are {dict(winner.settings)!r}")
    return winner


def read_journal(text: str) -> tuple[list[dict[str, Any]], int]:
    """The measurements of a journal, one JSON object a line, and how many lines are none; the last may be cut off."""
    found, bad = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            one = read_json(line)
        except ValueError:
            one = None
        if isinstance(one, dict) and isinstance(one.get("kind"), str):
            found.append(one)
        else:
            bad += 1
    return found, bad
