"""What every backend is, whatever it computes: its arrays, the order of its work, its clock."""

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

    xp is the array namespace of these arrays (the array API standard): `xp.zeros`, `xp.abs`, `xp.maximum` … serve
    wherever an operation is only an array library's call.  New arrays lie on the backend's device, and are fp64 where
    no type is named.  What overflows or is undefined becomes inf or NaN without a warning: solvers test for that.
    Products and norms of vectors are kernels: NumPy's BLAS has a pool of threads of its own.  An array's `tolist()`
    waits for it and gives Python numbers.
    """

    name: str
    threads: int

    @property
    def background(self) -> bool:
        """Whether operations may go on after the calls that began them have returned."""

    @property
    def xp(self) -> Any:
        """The array namespace of these arrays."""

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of the work that these operations begin."""

    def wait(self) -> None:
        """Return once everything that was begun has ended."""

    def side_stream(self, begun: Any = None) -> AbstractContextManager[None]:
        """What is begun inside may run together with what is begun outside later.

        It begins after `begun`, a mark of the stopwatch (None: after all that was begun before), and after what was
        begun inside before.
        """

    def main_stream(self) -> AbstractContextManager[None]:
        """Within a side stream: what is begun inside is begun outside of it, after all that was."""

    def join(self) -> None:
        """What is begun from here on begins after all that was begun in a side stream."""

    def rehearse(self, use: Callable[[], None], cores: Sequence[int]) -> None:
        """Compile all that a use begins, side by side on these cores of the host, without computing it.

        A help before the use itself, which compiles what is missing; nothing where compilation does not wait for a use.
        The use begins the same operations whatever numbers come out, if not equally often.
        """

    def facts(self) -> dict[str, Any]:
        """Libraries and versions that compute, for the result."""

    def device_facts(self) -> dict[str, Any]:
        """The device that computes, for the result; empty for the host."""

    @property
    def transport(self) -> Any:
        """How arrays of these kernels become messages: a `comm.base.Transport`; None: as they are."""
