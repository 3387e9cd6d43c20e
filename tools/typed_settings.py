"""Generate the stub of `mxpeak.run` from the options of the benchmarks:  python tools/typed_settings.py

Editors complete the settings of `mxpeak.run.hpl(...)`, and type checkers reject others. The wheel contains the stub as
`mxpeak/library/run.pyi` (see build_hook.py).
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.options import Option, options

HEAD = '''"""Run the benchmarks as functions, such as `mxpeak.run.hpl(n=20000, ranks=4)`."""

from collections.abc import Sequence
from typing import Any, Literal, Required, TypedDict, Unpack, overload

from mxpeak.records import Result

def __getattr__(name: str) -> Any: ...
'''
#: Options that are a list in one case: a format for each level.
LISTED_IN_ONE = ("mg_precision",)
#: Options that one case must name, because otherwise all their values are measured.
NAMED = {"norms": "kind"}
#: Options that turn one case into several.
SEVERAL = ("study", "ranks_list")
#: Values that some options accept as text, in addition to numbers: a share, a duration, the ranks of a node.
TEXTS = ("80%", "30m", "node")


def class_name(benchmark: str, ending: str) -> str:
    """Return the name of a class, such as HplMxpCase for hpl-mxp."""
    return "".join(part.capitalize() for part in benchmark.split("-")) + ending


def value_type(o: Option, hint: object) -> tuple[str, bool, bool]:
    """Return the type of one value of an option, whether it may be None, and whether the option accepts a list."""
    optional = o.default is None
    parts = [part for part in typing.get_args(hint) if part is not type(None)] or [hint]
    kind = parts[0] if isinstance(hint, types.UnionType) else hint
    listed = typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is ...
    if listed:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is tuple:
        sides = 3 if len(typing.get_args(kind)) == 3 and ... not in typing.get_args(kind) else 2
        return f"tuple[{', '.join(['int'] * sides)}] | str", optional, listed
    choices = re.fullmatch(r"\{([^.\[]*)\}", o.metavar)
    if kind is str and choices:
        words = ", ".join(f'"{word}"' for word in choices[1].split(","))
        return f"Literal[{words}]", optional, listed
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if o.name in LISTED_IN_ONE:
        return f"{name} | Sequence[{name}]", optional, False
    return (f"{name} | str" if name in ("int", "float") and accepts_text(o) else name), optional, listed


def accepts_text(o: Option) -> bool:
    """Return whether an option reads a share or a duration."""
    for text in TEXTS:
        try:
            o.parse(text)
        except ValueError:
            continue
        return True
    return False


@dataclass(frozen=True)
class TypedSetting:
    """A setting with the type of one value, and whether it accepts several."""

    name: str
    type: str
    optional: bool
    listed: bool

    def line(self, *, several: bool, named: str = "") -> str:
        """Return the setting as a line of a class, for one value or for several; the `named` setting is required."""
        more = f" | Sequence[{self.type.split(' | ')[0]}]" if self.listed and several else ""
        kind = f"{self.type}{more}{' | None' if self.optional else ''}"
        return f"    {self.name}: {f'Required[{kind}]' if self.name == named else kind}\n"


def typed_settings(benchmark: str) -> list[TypedSetting]:
    """Return all settings of a benchmark."""
    config = BENCHMARKS[benchmark].config
    hints = typing.get_type_hints(config)
    return [TypedSetting(o.name, *value_type(o, hints[o.name])) for o in options(config)]


def class_of(name: str, base: str, lines: Iterable[str]) -> str:
    """Return a class of settings."""
    return f"\nclass {name}({base}, total=False):\n" + ("".join(lines) or "    pass\n")


def function_of(benchmark: str) -> str:
    """Return the function of a benchmark: one case gives a result, several give a list."""
    name = benchmark.replace("-", "_")
    overlap = "  # type: ignore[overload-overlap]" if benchmark in NAMED else ""
    signatures = (("Case", "Result", overlap), ("Cases", "list[Result]", ""))
    return "".join(
        f"@overload\ndef {name}(**settings: Unpack[{class_name(benchmark, ending)}]) -> {result}: ...{note}\n"
        for ending, result, note in signatures
    )


def stub() -> str:
    """Return the stub: the settings of all benchmarks, then those of each with one value and with several."""
    settings_of = {name: typed_settings(name) for name in BENCHMARKS}
    first = next(iter(settings_of.values()))
    common = [
        setting for setting in first if not setting.listed and all(setting in others for others in settings_of.values())
    ]
    common = [setting for setting in common if setting.name not in SEVERAL]
    parts = [HEAD, class_of("Common", "TypedDict", (setting.line(several=False) for setting in common))]
    for name, settings in settings_of.items():
        own = [setting for setting in settings if setting not in common and setting.name not in SEVERAL]
        single, lists = (
            [setting for setting in own if not setting.listed],
            [setting for setting in own if setting.listed],
        )
        series = [setting for setting in settings if setting.name in SEVERAL]
        base, named = class_name(name, "Common"), NAMED.get(name, "")
        parts += [
            class_of(base, "Common", (setting.line(several=False) for setting in single)),
            class_of(class_name(name, "Case"), base, (setting.line(several=False, named=named) for setting in lists)),
            class_of(class_name(name, "Cases"), base, (setting.line(several=True) for setting in lists + series)),
            "\n",
            function_of(name),
        ]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(stub())
