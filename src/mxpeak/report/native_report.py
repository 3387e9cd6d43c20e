"""Base class of reports in the formats of the original codes, which existing scripts parse."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from mxpeak.foreign import printable
from mxpeak.records import Result


class Stream(Protocol):
    """A text stream to which a report is written."""

    def write(self, text: str, /) -> object:
        """Write text to the stream."""

    def flush(self) -> None:
        """Flush the stream, so that readers can see the text."""


class OwnReport:
    """Writes a report to `stream`. Each format overrides the methods of the parts that it has.

    `settings` contains the values of the configuration by name, with the sizes and grids of the run. `begun` is the
    start time of the run.
    """

    def __init__(self, stream: Stream, settings: Mapping[str, Any], begun: datetime):
        self._stream, self._settings, self._begun = stream, settings, begun

    def header(self) -> None:
        """Write the part before the first case."""

    def case(self, result: Result) -> None:
        """Write the part about one case."""

    def skipped(self) -> None:
        """Write the part about a case that did not fit into memory."""

    def footer(self, passed: int, failed: int, skipped: int) -> None:
        """Write the part after the last case."""

    def _write(self, text: str) -> None:
        self._stream.write(printable(text))
        self._stream.flush()
