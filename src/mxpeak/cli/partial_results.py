"""What is known of a run while it goes on, as a file: a SIGKILL or a power cut leaves no time to write a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mxpeak.cli.run_history import SO_FAR
from mxpeak.records import Result, document, to_json

if TYPE_CHECKING:
    from mxpeak.cli.output import Folder
    from mxpeak.cli.session import Session

#: Seconds between two writings: each waits for the disk.
EVERY_S = 10.0


class SoFarFile:
    """The cases that have ended, and the finished solves of the one under way as `aborted`; of rank 0.

    It stands beside the results until they are written.
    """

    def __init__(self, folder: Folder, session: Session):
        self._folder, self._session = folder, session
        self._written_s, self._able = time.monotonic(), True

    def keep(self, ended: Sequence[Result], under_way: Callable[[], Result] | None = None) -> None:
        """Write what is known, if the last writing is long ago."""
        now = time.monotonic()
        if not self._able or now - self._written_s < EVERY_S:
            return
        try:
            results = [*ended, *([] if under_way is None else [under_way()])]
            self._folder.replace(SO_FAR, to_json(document(results, several=True)))
        except (OSError, ValueError) as error:  # the run goes on without it
            self._able = False
            self._session.log(
                f"warning: cannot write {self._folder.path / SO_FAR}: {getattr(error, 'strerror', None) or error}; if "
                "the run is killed, no result remains"
            )
        self._written_s = now

    def clear(self) -> None:
        """The results are written, or shown."""
        with suppress(OSError):  # a folder that is gone, or cannot be written any more, has been told of
            self._folder.remove(SO_FAR)
