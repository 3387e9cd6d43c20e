"""Run functions of the plain sparse kernels as one launch each, like Triton's kernels.

They run on the tensors inside the virtual ones. Each call records the entries that it reads and writes, so that a sweep
of some rows does not count as a sweep of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mxpeak.kernels.torch.sparse import plain
from tests.support.queues.log import Region
from tests.support.queues.rank import here
from tests.support.queues.tensors import Virtual, region

_inside: dict[int, tuple[Any, Any]] = {}


def inside(value: Any) -> Any:
    """Return a value with each virtual tensor replaced by the tensor inside."""
    if isinstance(value, Virtual):
        return value.elem
    if isinstance(value, (list, tuple)):
        parts = [inside(field) for field in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        if id(value) not in _inside:
            changed = {field.name: inside(getattr(value, field.name)) for field in fields(value) if field.init}
            _inside[id(value)] = value, replace(value, **changed)
        return _inside[id(value)][1]
    return value


def _rows(y: Any, chosen: Any) -> Region:
    whole = region(y, True)
    rows = tuple(torch.cat(chosen).tolist()) if chosen else ()
    return Region(whole.memory, whole.first, whole.shape, whole.strides, whole.itemsize, True, rows)


def _sweep(device: Any, A: Any, task: Any, Hx: Any) -> list[Region]:
    steps, b, x, keep, _ = task
    rows = [inside(steps.chunks[step]).rows for step in range(steps.count)]
    read = [t for t in (A.entries, A.diagonal, b, Hx) if t is not None]
    return [
        *(region(t, False) for t in read),
        region(x[: A.n], False),
        *(_rows(y, rows) for y in (x, keep) if y is not None),
    ]


def _multiply(device: Any, A: Any, x: Any, y: Any) -> list[Region]:
    return [region(A.entries, False), region(A.diagonal, False), region(x[: A.n], False), region(y[: A.n], True)]


def _residual(device: Any, A: Any, task: Any) -> list[Region]:
    _, b, x, keep, r, _ = task
    read = [t for t in (A.entries, A.diagonal, b, keep) if t is not None]
    return [*(region(t, False) for t in read), region(x[: A.n], False), region(r, True)]


def _halo(device: Any, A: Any, halo: Any, surface: Any, y: Any, **_: Any) -> list[Region]:
    return [region(halo[: A.halo], False), region(A.halo_entries, False), _rows(y, [inside(surface).targets])]


TOUCHES: dict[str, Callable[..., list[Region]]] = {
    "sweep": _sweep,
    "multiply": _multiply,
    "residual": _residual,
    "halo_product": _halo,
}


def _one_launch(name: str) -> Callable[..., None]:
    function, touches = getattr(plain, name), TOUCHES[name]

    def launch(*args: Any, **kwargs: Any) -> None:
        rank = here()
        regions = tuple(touches(*args, **kwargs))
        with _disable_current_modes():
            function(*inside(args), **kwargs)
        size = 0
        for touched in regions:
            count = 1
            for i, n in enumerate(touched.shape):
                count *= len(touched.rows) if i == 0 and touched.rows is not None else n
            size += count * touched.itemsize
        rank.log.op(rank.stream().name, name, "kernel", regions, bytes=size)

    return launch


@contextmanager
def single_launches() -> Iterator[None]:
    """Record each call of these functions as one launch."""
    with ExitStack() as stack:
        for name in TOUCHES:
            stack.enter_context(patch.object(plain, name, _one_launch(name)))
        yield
    _inside.clear()
