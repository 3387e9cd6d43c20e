"""Imitate device and pinned tensors with CPU tensors, and record each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.queues import libraries
from tests.support.queues.log import HOST, Region
from tests.support.queues.rank import Rank, here

aten = torch.ops.aten
#: Operations that return a number, or a tensor whose size depends on numbers; the host waits for them.
NUMBERS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.unique_consecutive.default,
    aten._unique2.default,
}
COPIES = {aten.copy_.default, aten._to_copy.default}
#: Gathers, which read only the selected rows, and scatters, which write only these.
GATHERS = {aten.index_select.default, aten.index_select.out}
SCATTERS = {aten.index_copy_.default}
#: The largest number of rows that are recorded individually; for more, all rows count as read or written.
MAX_ROWS = 2**12


class Memory:
    """Memory that a tensor and its views share; its stream allocates it and gets it back."""

    def __init__(self, rank: Rank, elem: torch.Tensor, device: torch.device):
        self.rank, self.device = rank, device
        self.on_device = device.type != "cpu"
        stream = rank.stream(device.index or 0).name if self.on_device else HOST
        self.number = rank.log.allocate(elem.untyped_storage().nbytes(), elem.itemsize, stream)

    def __del__(self) -> None:
        if self.on_device:
            self.rank.log.free(self.number)


class Virtual(torch.Tensor):
    """A tensor on an imitated device, with its numbers in the CPU tensor `elem`."""

    elem: torch.Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, elem: torch.Tensor, memory: Memory) -> Any:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device=memory.device,
        )
        wrapper.elem, wrapper.memory = elem, memory
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"{type(self).__name__}({self.elem})"

    def data_ptr(self) -> int:
        return self.elem.data_ptr()

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Any:
        return run(aten.copy_.default, (self, source, non_blocking), {})

    def __getitem__(self, key: Any) -> Any:
        return run(_get, (self, key), {}) if _is_view(key) else run(_take, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        if not _is_view(key):
            run(_put, (self, key, value), {})
        elif isinstance(value, torch.Tensor):
            self[key].copy_(value)
        else:
            self[key].fill_(value)


class DeviceTensor(Virtual):
    """A tensor of a virtual GPU."""

    def __invert__(self) -> Any:
        return torch.bitwise_not(self)

    def nonzero(self, **_: Any) -> Any:
        return run(aten.nonzero.default, (self,), {})

    def item(self) -> Any:
        return run(aten._local_scalar_dense.default, (self,), {})

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"a tensor on {self.device} is no array; copy it to the host first")


#: Pinned memory by its address, for arrays that share it.
_pinned: WeakValueDictionary[int, Memory] = WeakValueDictionary()


class PinnedTensor(Virtual):
    """A tensor in pinned memory, which copies read and write while the host continues."""

    def _looked_at(self) -> torch.Tensor:
        here().log.op(HOST, "read by the host", "host", (region(self, False),))
        return self.elem

    def tolist(self) -> Any:
        return self._looked_at().tolist()

    def numpy(self, **_: Any) -> Any:
        return self._looked_at().numpy()


def pinned(elem: torch.Tensor) -> PinnedTensor:
    """Return a CPU tensor as pinned memory."""
    memory = Memory(here(), elem, torch.device("cpu"))
    _pinned[elem.untyped_storage().data_ptr()] = memory
    return PinnedTensor(elem, memory)


class Dispatch(TorchDispatchMode):
    """Intercept the functions that create tensors, and make device tensors and pinned tensors virtual."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


# --- one operation


def region(t: Virtual, writes: bool, rows: tuple[int, ...] | None = None) -> Region:
    """Return a tensor's entries in its memory."""
    elem = t.elem
    return Region(t.memory.number, elem.storage_offset(), tuple(elem.shape), elem.stride(), elem.itemsize, writes, rows)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute immediately; record the entries that are read and written, and the stream."""
    device = kwargs.get("device")
    to_gpu = device is not None and torch.device(device).type == "cuda"
    given = list(_tensors(func, args, kwargs))
    virtual = [t for t, _ in given if isinstance(t, Virtual)]
    if not virtual and not to_gpu:
        if kwargs.get("pin_memory"):
            return pinned(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)
    if func in COPIES:
        return _copy(func, args, kwargs)
    plain = {**kwargs, "device": "cpu"} if device is not None else kwargs
    if kwargs.get("pin_memory"):
        plain = {**plain, "pin_memory": False}
    outs = _compute(func, *_mapped(Virtual, lambda t: t.elem, (args, plain)))
    tensor_at = {t.elem.untyped_storage().data_ptr(): t for t in virtual if t.elem.untyped_storage().nbytes()}
    where = torch.device(device) if to_gpu else next((t.device for t in virtual if t.is_cuda), virtual[0].device)
    fresh: list[Virtual] = []

    def wrapped(out: torch.Tensor) -> Virtual:
        same = next((t for t in virtual if t.elem is out), None)
        if same is not None:
            return same
        base = tensor_at.get(out.untyped_storage().data_ptr())
        if base is None and where.type == "cpu":
            return pinned(out)
        tensor = (type(base) if base is not None else DeviceTensor)(
            out, base.memory if base is not None else Memory(here(), out, where)
        )
        if base is None:
            fresh.append(tensor)
        return tensor

    result = _mapped(torch.Tensor, wrapped, outs)
    if not _views(func):
        _note(func, given, fresh, where, args, kwargs)
    return outs if func in NUMBERS and not isinstance(outs, (torch.Tensor, tuple)) else result


def _mapped(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with all its items of a type replaced, also in tuples, lists and dictionaries."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([_mapped(kind, change, one) for one in value])
    if type(value) is dict:
        return {key: _mapped(kind, change, one) for key, one in value.items()}
    return value


def _note(func: Any, given: Any, fresh: list[Virtual], where: torch.device, args: Any, kwargs: Any) -> None:
    """Record an operation of the current stream; the host waits if the result is a number."""
    rank = here()
    if rank.log.paused:
        return
    regions = []
    for t, writes in given:
        if isinstance(t, Virtual):
            regions.append(region(t, writes, _rows(func, t, args)))
        elif t.dim() > 0 and where.type == "cuda" and not _may_mix(func):
            raise RuntimeError(f"{func} was given a tensor of the host and one of {where}")
    regions += [region(t, True) for t in fresh]
    actor = rank.stream(where.index or 0).name if where.type == "cuda" else HOST
    kind, flops, precision, sizes = libraries.work(func, args, kwargs)
    size = sum(_bytes(one) for one in regions)
    if not size and not flops:
        return
    if aten.empty.memory_format is func or aten.empty_strided.default is func:
        return
    rank.log.op(actor, str(func), kind, tuple(regions), flops=flops, bytes=size, precision=precision, sizes=sizes)
    if actor != HOST and (func in NUMBERS or _counts(func, args)):
        rank.log.join(HOST, actor, number=True)


def _bytes(region: Region) -> int:
    count = 1
    for i, n in enumerate(region.shape):
        count *= len(region.rows) if i == 0 and region.rows is not None else n
    return count * region.itemsize


def _copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Record a copy within a device, or to or from the host; the host waits for the latter unless `non_blocking`."""
    source = args[1] if func is aten.copy_.default else args[0]
    rank = here()
    if func is aten._to_copy.default:
        asked = kwargs.get("device")
        where = torch.device(asked) if asked is not None else source.device
        elem = source.elem if isinstance(source, Virtual) else source
        plain = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
        copied = func(elem, **plain)
        if where.type == "cuda":
            target: Any = DeviceTensor(copied, Memory(rank, copied, where))
        else:
            target = copied
    else:
        target = args[0]
        to, of = (t.elem if isinstance(t, Virtual) else t for t in (target, source))
        to.copy_(of)
    asynchronous = bool(kwargs.get("non_blocking") or (func is aten.copy_.default and len(args) > 2 and args[2]))
    _note_copy(rank, source, target, asynchronous)
    return target


def _note_copy(rank: Rank, source: Any, target: Any, asynchronous: bool) -> None:
    on_device = [t for t in (target, source) if isinstance(t, DeviceTensor)]
    regions = _copied(source, target)
    if not on_device:
        rank.log.op(HOST, "copy", "host", regions)
        return
    stream = rank.stream(on_device[0].device.index or 0).name
    size = target.numel() * target.element_size()
    both = len(on_device) == 2
    others = on_device[0].device != on_device[-1].device
    if others:  # torch makes the streams of both devices wait for each other
        rank.log.join(stream, rank.stream(on_device[1].device.index or 0).name)
    kind = "kernel" if both else "up" if isinstance(target, DeviceTensor) else "down"
    rank.log.op(stream, "copy", kind, regions, bytes=size * (2 if both else 1))
    if others:
        rank.log.join(rank.stream(on_device[1].device.index or 0).name, stream)
    host = source if isinstance(target, DeviceTensor) else target
    if not both and (not asynchronous or (kind == "down" and not _is_pinned(host))):
        rank.log.join(HOST, stream, number=kind == "down")


def _copied(source: Any, target: Any) -> tuple[Region, ...]:
    regions = []
    for t, writes in ((source, False), (target, True)):
        if isinstance(t, Virtual):
            regions.append(region(t, writes))
        elif (memory := _pinned.get(t.untyped_storage().data_ptr())) is not None:
            regions.append(Region(memory.number, t.storage_offset(), tuple(t.shape), t.stride(), t.itemsize, writes))
    return tuple(regions)


def _is_pinned(t: Any) -> bool:
    return isinstance(t, PinnedTensor) or t.untyped_storage().data_ptr() in _pinned


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    special = libraries.MISSING.get(func)
    return (special or func)(*args, **kwargs)


# --- the operands that operations read and write


def _get(t: torch.Tensor, key: Any) -> torch.Tensor:
    return torch.Tensor.__getitem__(t, key)


def _take(t: torch.Tensor, key: Any) -> torch.Tensor:
    return torch.Tensor.__getitem__(t, key)


def _put(t: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    torch.Tensor.__setitem__(t, key, value)
    return t


def _is_view(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(isinstance(part, (int, slice, type(None), type(...))) for part in parts)


@cache
def _schema(func: Any) -> tuple[list[tuple[int, str, bool]], bool]:
    """Return the arguments that may be tensors, and whether the result is a view."""
    arguments = [
        (i, argument.name, argument.alias_info is not None and argument.alias_info.is_write)
        for i, argument in enumerate(func._schema.arguments)
        if "Tensor" in str(argument.type)
    ]
    returns = func._schema.returns
    views = bool(returns) and all(
        argument.alias_info is not None and not argument.alias_info.is_write for argument in returns
    )
    return arguments, views


def _views(func: Any) -> bool:
    if func is _get:
        return True
    return func not in (_take, _put) and _schema(func)[1]


def _tensors(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[torch.Tensor, bool]]:
    """Return the tensors among the arguments, and whether they are written."""
    if func in (_get, _take, _put):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        yield args[0], func is _put
        yield from ((t, False) for t in (*parts, *args[2:]) if isinstance(t, torch.Tensor))
        return
    for i, name, writes in _schema(func)[0]:
        value = args[i] if i < len(args) else kwargs.get(name)
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(t, torch.Tensor):
                yield t, writes


def _rows(func: Any, t: Virtual, args: Any) -> tuple[int, ...] | None:
    """Return the rows that a gather reads or a scatter writes; None for all rows."""
    if func in GATHERS and t is args[0] and args[1] == 0 and t is not args[2]:
        return tuple(args[2].elem.tolist())
    if (func is _take or func is _put) and t is args[0] and isinstance(args[1], DeviceTensor) and args[1].dim() == 1:
        rows = args[1].elem
        if rows.numel() > MAX_ROWS:
            return None
        return tuple((rows.nonzero().view(-1) if rows.dtype == torch.bool else rows).tolist())
    if func in SCATTERS and t is args[0] and args[1] == 0:
        return tuple(args[2].elem.tolist())
    return None


def _counts(func: Any, args: Any) -> bool:
    """Return whether the size of the result depends on the numbers, as for an index by a mask."""
    keys = args[1] if _may_mix(func) else ()
    each = keys if isinstance(keys, (list, tuple)) else (keys,)
    return any(isinstance(key, torch.Tensor) and key.dtype == torch.bool for key in each)


def _may_mix(func: Any) -> bool:
    return func in (_take, _put, aten.index.Tensor, aten.index_put_.default)
