"""The settings of `mxpeak.run.hpl(...)` as types, made of the configs:  python tools/typed_settings.py [--write]

Editors complete them, and type checkers refuse others; without --write they are printed.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.options import Option, options

FILE = Path(__file__).parents[1] / "src" / "mxpeak" / "library" / "run_settings.py"
HEAD = '''"""The settings of `mxpeak.run.hpl(...)` and the others, made by: python tools/typed_settings.py --write

`...Case` gives one result: one value of each setting.  `...Cases` gives a list: several values of some, or a study.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Required, TypedDict
'''
#: What is a list in one case: a format for each level.  What has to be named for one case: else all are measured.
LISTED_IN_ONE, NAMED = ("mg_precision",), {"norms": "kind"}
#: What makes several cases of one.
SEVERAL = ("study", "ranks_list")
#: Values that some options take as text, beside their number: a share, a duration.
TEXTS = ("80%", "30m")


def class_name(benchmark: str, ending: str) -> str:
    """HplMxpCase for hpl-mxp."""
    return "".join(part.capitalize() for part in benchmark.split("-")) + ending


def value_type(one: Option, hint: object) -> tuple[str, bool, bool]:
    """The type of one value of a setting, whether it may be None, and whether it takes a list of them."""
    optional = one.default is None
    parts = [part for part in typing.get_args(hint) if part is not type(None)] or [hint]
    kind = parts[0] if isinstance(hint, types.UnionType) else hint
    listed = typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is ...
    if listed:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is tuple:
        return "tuple[int, int] | str", optional, listed
    choices = re.fullmatch(r"\{([^.\[]*)\}", one.metavar)
    if kind is str and choices:
        words = ", ".join(f'"{word}"' for word in choices[1].split(","))
        return f"Literal[{words}]", optional, listed
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if one.name in LISTED_IN_ONE:
        return f"{name} | Sequence[{name}]", optional, False
    return (f"{name} | str" if name in ("int", "float") and takes_text(one) else name), optional, listed


def takes_text(one: Option) -> bool:
    """Whether it reads a share or a duration."""
    for text in TEXTS:
        try:
            one.parse(text)
        except ValueError:
            continue
        return True
    return False


@dataclass(frozen=True)
class Typed:
    """A setting, the type of one value of it, and whether it takes several."""

    name: str
    type: str
    optional: bool
    listed: bool

    def line(self, *, several: bool, named: str = "") -> str:
        """The setting as a line of a class: of one value, or of several too; the `named` one must be there."""
        more = f" | Sequence[{self.type.split(' | ')[0]}]" if self.listed and several else ""
        kind = f"{self.type}{more}{' | None' if self.optional else ''}"
        return f"    {self.name}: {f'Required[{kind}]' if self.name == named else kind}\n"


def typed(benchmark: str) -> list[Typed]:
    """All settings of a benchmark."""
    config = BENCHMARKS[benchmark].config
    hints = typing.get_type_hints(config)
    return [Typed(one.name, *value_type(one, hints[one.name])) for one in options(config)]


def class_of(name: str, base: str, said: str, lines: Iterable[str]) -> str:
    """A class of settings; where it adds none, its docstring alone."""
    body = "".join(lines)
    return f'\n\nclass {name}({base}, total=False):\n    """{said}"""\n' + (f"\n{body}" if body else "")


def module() -> str:
    """The whole file: what all benchmarks take, then each one's own, with one value of each or with several."""
    found = {name: typed(name) for name in BENCHMARKS}
    common = [one for one in found["hpl"] if not one.listed and all(one in others for others in found.values())]
    common = [one for one in common if one.name not in SEVERAL]
    parts = [
        HEAD,
        class_of("Common", "TypedDict", "Settings of all benchmarks.", (c.line(several=False) for c in common)),
    ]
    for name, settings in found.items():
        function = f"`mxpeak.run.{name.replace('-', '_')}`"
        own = [one for one in settings if one not in common and one.name not in SEVERAL]
        single, lists = [one for one in own if not one.listed], [one for one in own if one.listed]
        series = [one for one in settings if one.name in SEVERAL]
        base = class_name(name, "Common")
        parts += [
            class_of(
                base,
                "Common",
                f"Settings of {function} with one value each.",
                (one.line(several=False) for one in single),
            ),
            class_of(
                class_name(name, "Case"),
                base,
                "One case.",
                (one.line(several=False, named=NAMED.get(name, "")) for one in lists),
            ),
            class_of(
                class_name(name, "Cases"), base, "Several cases.", (one.line(several=True) for one in lists + series)
            ),
        ]
    return "".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(module(), encoding="utf-8")
    else:
        print(module(), end="")
