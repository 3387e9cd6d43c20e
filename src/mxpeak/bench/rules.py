"""Published rules: what a run broke, and how the section `rules` of a result says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a run breaks, and by how much."""

    rule: str
    text: str


def ruling(broken: Sequence[Violation]) -> dict[str, Any]:
    """Whether a result is ADMISSIBLE, and which rules it breaks."""
    return {"admissible": not broken, "violations": [asdict(one) for one in broken]}
