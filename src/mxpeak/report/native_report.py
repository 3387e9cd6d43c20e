"""Write the native report of a benchmark, which existing scripts parse, to a stream after each case."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from mxpeak.foreign import printable
from mxpeak.records import Result


class Stream(Protocol):
    """The output of a report."""

    def write(self, text: str, /) -> object:
        """Write a text."""

    def flush(self) -> None:
        """Make all written text visible to readers."""


class OwnReport:
    """Writes a report to `stream`; each format overrides the parts that it writes.

    `settings` are the values of the configuration by name, with the sizes and grids of the run. `begun` is the start
    time of the run.
    """

    def __init__(self, stream: Stream, settings: Mapping[str, Any], begun: datetime):
        self._stream, self._settings, self._begun = stream, settings, begun

    def header(self) -> None:
        """Write the part before the first case."""

    def case(self, result: Result) -> None:
        """Write one case."""

    def skipped(self) -> None:
        """Write a case that did not fit into memory."""

    def footer(self, passed: int, failed: int, skipped: int) -> None:
        """Write the part after the last case."""

    def _write(self, text: str) -> None:
        self._stream.write(printable(text))
        self._stream.flush()
