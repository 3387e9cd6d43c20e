"""The protocol that all backends share: arrays, the order of operations, and a stopwatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mxpeak.spans import Stopwatch

Matrix = Any
Vector = Any
Indices = Any


class Backend(Protocol):
    """A backend: its arrays, the order of the operations on these arrays, and its stopwatch.

    xp is the array namespace of these arrays (the array API standard): `xp.zeros`, `xp.abs`, `xp.maximum` … are used
    if an operation is a single call of an array library. New arrays are on the backend's device, and fp64 unless a
    type is given. Overflow and undefined operations give inf or NaN without a warning, and solvers test for these
    values. Products and norms of vectors are kernels, because NumPy's BLAS has its own pool of threads. `tolist()` of
    an array waits for the array and returns Python numbers.
    """

    name: str
    threads: int

    @property
    def background(self) -> bool:
        """Return whether operations may still run after their calls have returned."""

    @property
    def xp(self) -> Any:
        """Return the array namespace of the backend's arrays."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch that measures the operations of this backend."""

    def wait(self) -> None:
        """Wait until all started operations have finished."""

    def side_stream(self, begun: Any = None) -> AbstractContextManager[None]:
        """Return a context whose operations run on a side stream and may overlap later operations on the main stream.

        The enclosed operations start after `begun`, an event of the stopwatch (None: after all earlier operations),
        and after earlier operations on the side stream.
        """

    def main_stream(self) -> AbstractContextManager[None]:
        """Return a context, for use inside `side_stream`, whose operations run on the main stream."""

    def join(self) -> None:
        """Make later operations wait for all operations on the side stream."""

    def rehearse(self, use: Callable[[], None], cores: Sequence[int]) -> None:
        """Compile the kernels that the function `use` calls in parallel on these host cores, without running them.

        `use` itself is called later and compiles the kernels that are missing. Backends without just-in-time
        compilation do nothing. The kernels that `use` calls must not depend on computed numbers.
        """

    def facts(self) -> dict[str, Any]:
        """Return the names and versions of the backend's numerical libraries, for the result file."""

    def device_facts(self) -> dict[str, Any]:
        """Return the name and properties of the device for the result file, or an empty dictionary for the host."""

    @property
    def transport(self) -> Any:
        """Return the `comm.base.Transport` that converts arrays to messages, or None if no conversion is needed."""
