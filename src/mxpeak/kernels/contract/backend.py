"""The common part of every backend: its arrays, the order of its work, and its clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mxpeak.spans import Stopwatch

Matrix = Any
Vector = Any
Indices = Any


class Backend(Protocol):
    """Arrays of one kind in one memory, and the order of the work on them.

    xp is the array namespace of these arrays (the array API standard): `xp.zeros`, `xp.abs`, `xp.maximum` … are used
    if an operation is a single call of an array library.  New arrays are on the backend's device, and fp64 unless a
    type is given.  Overflow and undefined operations give inf or NaN without a warning, and solvers test for them.
    Products and norms of vectors are kernels, because NumPy's BLAS has its own pool of threads.  `tolist()` of an array
    waits for the array and returns Python numbers.
    """

    name: str
    threads: int

    @property
    def background(self) -> bool:
        """Whether operations may continue after their calls have returned."""

    @property
    def xp(self) -> Any:
        """The array namespace of these arrays."""

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of the work that these operations start."""

    def wait(self) -> None:
        """Wait until all operations that were started have finished."""

    def side_stream(self, begun: Any = None) -> AbstractContextManager[None]:
        """Start the enclosed operations on a side stream, which may overlap with later ones on the main stream.

        They start after `begun`, a mark of the stopwatch (None: after all earlier operations), and after earlier
        operations on the side stream.
        """

    def main_stream(self) -> AbstractContextManager[None]:
        """Start the enclosed operations on the main stream, after all earlier ones, within a side stream."""

    def join(self) -> None:
        """Make later operations wait for all operations that were started on the side stream."""

    def rehearse(self, use: Callable[[], None], cores: Sequence[int]) -> None:
        """Compile the kernels of a use in parallel on these cores of the host, without computing.

        The use itself, which follows, compiles the kernels that are missing; backends without just-in-time compilation
        do nothing.  A use starts the same kinds of operations whatever numbers result.
        """

    def facts(self) -> dict[str, Any]:
        """Return the libraries that compute, and their versions, for the result."""

    def device_facts(self) -> dict[str, Any]:
        """Return the description of the device for the result; empty for the host."""

    @property
    def transport(self) -> Any:
        """The `comm.base.Transport` that turns arrays into messages, or None if they are sent as they are."""
