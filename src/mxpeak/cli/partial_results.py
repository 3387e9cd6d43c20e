"""Write the results so far to a file during a run, because they would be lost after SIGKILL or a power failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mxpeak.cli.run_history import PARTIAL
from mxpeak.records import Result, document, to_json

if TYPE_CHECKING:
    from mxpeak.cli.output import Folder
    from mxpeak.cli.session import Session

#: Seconds between two writes, because each write waits for the disk.
EVERY_S = 10.0


class PartialResultsFile:
    """Writes the completed cases, and the completed solves of the current case, to a file on rank 0.

    The current case has the status `aborted`. The file is removed when the final results have been written.
    """

    def __init__(self, folder: Folder, session: Session):
        self._folder, self._session = folder, session
        self._written_s, self._able = time.monotonic(), True

    def write(self, finished: Sequence[Result], current: Callable[[], Result] | None = None) -> None:
        """Write the results so far, unless the previous write was less than EVERY_S ago.

        `current` returns the result of the completed solves of the current case.
        """
        now = time.monotonic()
        if not self._able or now - self._written_s < EVERY_S:
            return
        try:
            results = [*finished, *([] if current is None else [current()])]
            self._folder.replace(PARTIAL, to_json(document(results, several=True)))
        except (OSError, ValueError) as error:  # the run continues without the file
            self._able = False
            self._session.log(
                f"warning: cannot write {self._folder.path / PARTIAL}: {getattr(error, 'strerror', None) or error}; if "
                "the run is killed, no result remains"
            )
        self._written_s = now

    def clear(self) -> None:
        """Remove the file of partial results."""
        with suppress(OSError):  # `write` has reported a folder that is not writable
            self._folder.remove(PARTIAL)
