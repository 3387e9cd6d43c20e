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
    """A rule that a run breaks. `text` explains the violation, and `source` is PUBLISHED or OWN."""

    rule: str
    text: str
    source: str = PUBLISHED


def ruling(broken: Sequence[Violation]) -> dict[str, Any]:
    """Return the section `rules` of a result: whether it is admissible and meaningful, and the rules that it breaks."""
    sources = {violation.source for violation in broken}
    return {
        "admissible": PUBLISHED not in sources,
        "meaningful": OWN not in sources,
        "violations": list(map(asdict, broken)),
    }


def break_rule(rules: dict[str, Any], broken: Violation) -> None:
    """Add a violation to the section `rules` of a result, and mark the result as not admissible or not meaningful."""
    rules["violations"].append(asdict(broken))
    rules["admissible" if broken.source == PUBLISHED else "meaningful"] = False
