"""Check data against the JSON Schemas of this package, without another package.

The check supports the keywords of these schemas and rejects all other keywords. An integer is a number without a
fraction in the JSON text; JSON Schema itself also accepts 8.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import gt, lt
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("result-1.json")
#: Return the first mismatch of a value at a path as text, or "" if the value matches. Without a path, return only
#: WRONG, because building paths and texts for matching values would take most of the time.
Check = Callable[[Any, str | None], str]
WRONG = "it does not match"

#: Keywords that another rule evaluates, or that need no check.
SILENT = {"$schema", "$id", "$defs", "title", "description", "then", "additionalProperties", "items"}
#: Names of the types in errors.
TYPES = {
    "null": "null",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "an array",
    "object": "an object",
}
#: Largest number of characters of a value in an error.
QUOTED = 60


def mismatch(value: Any, definition: str | Mapping[str, Any], *, complete: bool = True) -> str:
    """Return the first mismatch of a value with a schema, or "" if it matches.

    `definition` is a name in the $defs of the result file, or a schema that may refer to them. Unless `complete`, keys
    that the schema requires may be absent.
    """
    if isinstance(definition, str):
        check = _definition(definition, complete)
    else:
        check = compiled(definition, lambda name: _definition(name, complete), complete)
    return check(value, "") if check(value, None) else ""


@cache
def _schema() -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return schema


@cache
def _definition(name: str, complete: bool) -> Check:
    return compiled(_schema()["$defs"][name], lambda other: _definition(other, complete), complete)


def compiled(schema: Mapping[str, Any], definition: Callable[[str], Check], complete: bool = True) -> Check:
    """Return the check of a schema; `definition` returns the check for the name in a $ref."""

    def inner(schema: Any) -> Check:
        return compiled(schema, definition, complete)

    checks: list[Check] = []
    for keyword, word in schema.items():
        if keyword in SILENT or (keyword == "required" and not complete):
            continue
        if keyword == "$ref":
            checks.append(_reference(word.removeprefix("#/$defs/"), definition))
        elif keyword == "properties":
            checks.append(_properties({name: inner(part) for name, part in word.items()}.get))
        elif keyword in ("oneOf", "anyOf"):
            checks.append(_choice([inner(part) for part in word], only=keyword == "oneOf"))
        elif keyword == "allOf":
            checks += [inner(part) for part in word]
        elif keyword == "if":
            checks.append(_condition(inner(word), inner(schema.get("then", {}))))
        else:
            checks.append(RULES[keyword](word))
    if "additionalProperties" in schema:
        others, named = inner(schema["additionalProperties"]), schema.get("properties", {})
        checks.append(_properties(lambda name: None if name in named else others))
    if "items" in schema:
        checks.append(_items(inner(schema["items"])))
    return _all(checks)


def _all(checks: list[Check]) -> Check:
    if len(checks) == 1:
        return checks[0]

    def check(value: Any, path: str | None) -> str:
        for rule in checks:
            if wrong := rule(value, path):
                return wrong
        return ""

    return check


def _reference(name: str, definition: Callable[[str], Check]) -> Check:
    """Return a check that looks up the definition when it is called, because definitions may refer to each other."""
    return lambda value, path: definition(name)(value, path)


def _type(names: str | list[str]) -> Check:
    names = [names] if isinstance(names, str) else names
    kinds = {"boolean": bool, "integer": int, "number": (int, float), "string": str, "array": list, "object": dict}
    wanted: tuple[type, ...] = ()
    for name in names:
        kind: Any = kinds.get(name, ())
        wanted += kind if isinstance(kind, tuple) else (kind,)
    null, truth = "null" in names, bool in wanted
    expected = " or ".join(TYPES[name] for name in names)

    def check(value: Any, path: str | None) -> str:
        fits = null if value is None else truth if isinstance(value, bool) else isinstance(value, wanted)
        return "" if fits else _message(path, value, f"not {expected}")

    return check


def _equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1."""
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def _enum(choices: Iterable[Any]) -> Check:
    choices = list(choices)
    expected = choices[0] if len(choices) == 1 else "one of " + ", ".join(map(str, choices))
    return lambda value, path: (
        "" if any(_equal(value, choice) for choice in choices) else _message(path, value, f"not {expected}")
    )


def _pattern(pattern: str) -> Check:
    search = re.compile(pattern).search
    return lambda value, path: (
        _message(path, value, f"which does not match {pattern}") if isinstance(value, str) and not search(value) else ""
    )


def _limit(wrong: Callable[[Any, Any], bool], how: str) -> Callable[[Any], Check]:
    """Return the rule for a keyword that limits a number."""

    def rule(limit: float) -> Check:
        return lambda value, path: (
            _message(path, value, f"{how} than {limit}") if _is_number(value) and wrong(value, limit) else ""
        )

    return rule


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _item_limit(wrong: Callable[[Any, Any], bool], how: str) -> Callable[[Any], Check]:
    """Return the rule for a keyword that limits the number of items of an array."""

    def rule(limit: int) -> Check:
        return lambda value, path: (
            f"{_at(path)} has {len(value)} items, {how} than {limit}"
            if isinstance(value, list) and wrong(len(value), limit)
            else ""
        )

    return rule


def _required(names: list[str]) -> Check:
    def check(value: Any, path: str | None) -> str:
        missing = [name for name in names if name not in value] if isinstance(value, dict) else []
        return f"{_at(path)} has no {missing[0]}" if missing else ""

    return check


def _properties(check_of: Callable[[str], Check | None]) -> Check:
    """Return the check of an object's items; `check_of` returns the check for a key, or None."""

    def check(value: Any, path: str | None) -> str:
        if isinstance(value, dict):
            for name, item in value.items():
                if (rule := check_of(name)) and (wrong := rule(item, _below(path, name))):
                    return wrong
        return ""

    return check


def _items(inner: Check) -> Check:
    def check(value: Any, path: str | None) -> str:
        if isinstance(value, list):
            for k, item in enumerate(value):
                if wrong := inner(item, None if path is None else f"{path}[{k}]"):
                    return wrong
        return ""

    return check


def _choice(checks: list[Check], *, only: bool) -> Check:
    """Return the check of anyOf, or of oneOf if `only`."""

    def check(value: Any, path: str | None) -> str:
        wrong = [rule(value, path) for rule in checks]
        fits = wrong.count("")
        if path is None:
            return "" if fits == 1 or (fits and not only) else WRONG
        if fits == 0:
            return f"{_at(path)} matches no alternative: {'; '.join(dict.fromkeys(wrong))}"
        return f"{_at(path)} matches {fits} alternatives instead of one" if only and fits > 1 else ""

    return check


def _condition(condition: Check, then: Check) -> Check:
    return lambda value, path: "" if condition(value, None) else then(value, path)


#: Checks by keyword.
RULES: Mapping[str, Callable[[Any], Check]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda value: _enum([value]),
    "pattern": _pattern,
    "minimum": _limit(lt, "less"),
    "maximum": _limit(gt, "more"),
    "minItems": _item_limit(lt, "fewer"),
    "maxItems": _item_limit(gt, "more"),
    "required": _required,
}


def _below(path: str | None, name: str) -> str | None:
    """Return the path of a key of the object at `path`, or None without a path."""
    return None if path is None else f"{path}.{name}" if path else name


def _message(path: str | None, value: Any, wrong: str) -> str:
    """Return a message that describes a wrong value."""
    return WRONG if path is None else f"{_at(path)} is {_quoted(value)}, {wrong}"


def _at(path: str | None) -> str:
    return path or "it"


def _quoted(value: Any) -> str:
    """Return a value as JSON, shortened to QUOTED characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"
