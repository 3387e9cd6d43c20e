"""Record violations of published rules and of mxpeak's own tests in the section `rules` of a result.

A result is admissible if it complies with every published rule. It is meaningful if it also passes mxpeak's own tests,
which set numbers for requirements that the published rules only describe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: Sources of a rule.
PUBLISHED, OWN = "published", "mxpeak"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a run breaks, and by how much; `source` shows whether the rule is published or mxpeak's own."""

    rule: str
    text: str
    source: str = PUBLISHED


def ruling(broken: Sequence[Violation]) -> dict[str, Any]:
    """Return the section `rules`: whether a result is admissible and meaningful, and which rules it breaks."""
    sources = {violation.source for violation in broken}
    return {
        "admissible": PUBLISHED not in sources,
        "meaningful": OWN not in sources,
        "violations": list(map(asdict, broken)),
    }


def break_rule(rules: dict[str, Any], broken: Violation) -> None:
    """Add a violation to the section `rules` of a result."""
    rules["violations"].append(asdict(broken))
    rules["admissible" if broken.source == PUBLISHED else "meaningful"] = False
