"""Read and write positional input files such as HPL.dat: numbered lines, of which only the leading words count.

Words are separated by white space, so every file that HPL reads is accepted. HPL silently replaces some invalid values
(an unknown broadcast becomes 1ringM); mxpeak raises an error instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mxpeak.errors import UsageError
from mxpeak.options import DIGITS, integer, quoted

MAX_VALUES = 20

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf(inity)?)", re.IGNORECASE)


def numbered(choices: Sequence[Any]) -> Callable[[str], Any]:
    """Return a parser that converts a number in an input file to the choice with this index."""

    def parse(text: str) -> Any:
        if not text.isdecimal() or len(text) > DIGITS or int(text) >= len(choices):
            names = ", ".join(f"{k} {choice}" for k, choice in enumerate(choices))
            raise UsageError(f"{quoted(text)} is unknown; use one of {names}")
        return choices[int(text)]

    return parse


@dataclass(frozen=True, slots=True)
class Dat:
    """The lines of one input file. Line numbers start at 1. A complete file has `expected` lines."""

    source: str
    lines: Sequence[str]
    expected: int

    @classmethod
    def of(cls, text: str, source: str, expected: int) -> Dat:
        """Split a text into the lines of an input file."""
        return cls(source, re.split(r"\r\n|\n|\r", text), expected)

    def word(self, number: int, name: str) -> str:
        """Return the first word of a line; raise a UsageError if the line is empty or missing."""
        words = self._line(number, name).split()
        if not words:
            raise self._error(number, name, "the line is empty; add a value")
        return words[0]

    def value(self, number: int, name: str, parse: Callable[[str], Any]) -> Any:
        """Parse the first word of a line."""
        return self._value(number, name, self.word(number, name), parse)

    def row(self, number: int, name: str, count: int, parse: Callable[[str], Any]) -> tuple[Any, ...]:
        """Parse the first `count` words of a line."""
        return self._leading(number, name, count, f"the line needs {count} values", parse)

    def many(self, number: int, name: str, parse: Callable[[str], Any], below: int = 1) -> tuple[Any, ...]:
        """Parse a list of values from two lines.

        Line `number` contains the length of the list, and the line `below` lines later contains its values.
        """
        count = self.value(number, f"number of {name}", integer(1, MAX_VALUES))
        request = f"line {number} requests {count} {'value' if count == 1 else 'values'}"
        return self._leading(number + below, name, count, request, parse)

    def _leading(
        self, number: int, name: str, count: int, request: str, parse: Callable[[str], Any]
    ) -> tuple[Any, ...]:
        words = self._line(number, name).split()[:count]
        length = next((k for k, word in enumerate(words) if not _NUMBER.fullmatch(word)), len(words))
        if words and not length:
            raise self._error(number, name, f"{quoted(words[0])} is not a number; use a number")
        if length < count:
            raise self._error(number, name, f"{request}, but the line contains {length}; add the missing values")
        return tuple(self._value(number, name, word, parse) for word in words)

    def _line(self, number: int, name: str) -> str:
        count = len(self.lines) if self.lines[-1].strip() else len(self.lines) - 1
        if number > count:
            raise UsageError(
                f"{self.source} line {number} ({name}): the file ends after line {count}, but it needs "
                f"{self.expected} lines; add the missing lines"
            )
        return self.lines[number - 1]

    def _value(self, number: int, name: str, word: str, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(word)
        except UsageError as error:
            raise self._error(number, name, str(error)) from None

    def _error(self, number: int, name: str, what: str) -> UsageError:
        return UsageError(f"{self.source} line {number} ({name}) is {quoted(self.lines[number - 1].strip())}: {what}")


def list_rows(file: str, name: str, values: Sequence[Any], names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the two lines of a list, its length and its values, each as a pair of text and comment."""
    if len(values) > MAX_VALUES:
        raise UsageError(
            f"an {file} file contains at most {MAX_VALUES} {name}, but {len(values)} were given; use at most "
            f"{MAX_VALUES}"
        )
    numbers = " ".join(str(names.index(value) if names else value) for value in values)
    remark = f"{name} ({', '.join(f'{k} {n}' for k, n in enumerate(names))})" if names else name
    return [(str(len(values)), f"number of {name}"), (numbers, remark)]


def dat_text(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return the text of an input file: a title, and one line per pair of value and comment."""
    return "\n".join([title, "written by mxpeak", *(f"{value:<12} {remark}" for value, remark in rows)]) + "\n"
