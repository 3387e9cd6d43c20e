"""Imitate a device `mps` without fp64, with tensors in host memory that do not mix with others.

Real tensors of MPS cannot be made on other machines. Inside `InventedMps()`, every operation on a tensor of the device
runs on the CPU, and raises an error if an operand or a result has 64-bit floating-point numbers, or if a tensor of the
CPU takes part, as on MPS.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

MPS = torch.device("mps", 0)
WIDE = (torch.float64, torch.complex128)
#: Operations that may read or write tensors of both devices.
COPIES = ("aten._to_copy.default", "aten.copy_.default")


class MpsTensor(torch.Tensor):
    """A tensor that reports the device `mps`; its numbers are in `numbers`, a tensor of the CPU."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> MpsTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=MPS
        )
        tensor.numbers = numbers
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __getitem__(self, index: Any) -> MpsTensor:  # torch's own needs the library of the device
        return MpsTensor(self.numbers[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse_mixed("a[...] = b", [self, value])
        self.numbers[index] = _numbers(value)

    def __repr__(self) -> str:
        return f"MpsTensor({self.numbers!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} of a tensor of the invented device, outside of InventedMps()")


class InventedMps(TorchDispatchMode):
    """The context in which the device exists; `calls` counts its operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        tensors = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)]
        own = [v for v in tensors if isinstance(v, MpsTensor)]
        if not own and (target is None or torch.device(target).type != "mps"):
            return func(*args, **kwargs)
        on_mps = torch.device(target).type == "mps" if target is not None else True
        name = str(func)
        if name not in COPIES:
            _refuse_mixed(name, tensors)
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        self.calls[name] += 1
        result = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
        if name == "aten.copy_.default":
            _refuse_wide([v.numbers for v in own])
            return args[0]
        _refuse_wide([v.numbers for v in own] + [v for v in tree_flatten(result)[0] if on_mps])
        if func._schema.is_mutable and isinstance(args[0], MpsTensor) and not isinstance(result, tuple):
            return args[0]
        return tree_map(lambda v: MpsTensor(v) if isinstance(v, torch.Tensor) and on_mps else v, result)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, MpsTensor) else value


def _refuse_mixed(name: str, values: Any) -> None:
    if any(isinstance(v, torch.Tensor) and not isinstance(v, MpsTensor) and v.ndim for v in values):
        raise RuntimeError(f"{name}: operands on mps:0 and on the CPU")


def _refuse_wide(values: Any) -> None:
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype in WIDE:
            raise TypeError("the MPS framework does not support float64")
