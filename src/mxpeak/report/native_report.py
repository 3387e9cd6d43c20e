"""A benchmark's own report: the text that its community's scripts read, written to a stream as the cases end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from mxpeak.foreign import printable
from mxpeak.records import Result


class Stream(Protocol):
    """Where a report goes."""

    def write(self, text: str, /) -> object:
        """Write some more of it."""

    def flush(self) -> None:
        """Let readers see it."""


class OwnReport:
    """A report on `stream`; formats override what they have something to say about.

    `settings` are the values of the configuration by name, with the sizes and grids that were run; `begun` dates it.
    """

    def __init__(self, stream: Stream, settings: Mapping[str, Any], begun: datetime):
        self._stream, self._settings, self._begun = stream, settings, begun

    def header(self) -> None:
        """Before the first case."""

    def case(self, result: Result) -> None:
        """One case."""

    def skipped(self) -> None:
        """A case that did not fit into memory."""

    def footer(self, passed: int, failed: int, skipped: int) -> None:
        """After the last case."""

    def _write(self, text: str) -> None:
        self._stream.write(printable(text))
        self._stream.flush()
