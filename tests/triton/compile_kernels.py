"""Compile every Triton kernel for GPUs that need not be present:  python -m tests.triton.compile_kernels [TARGET...]

Each file kernels/torch/triton/*.py names the signatures and constants of its kernels.
"""

from __future__ import annotations

import pkgutil
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import chain
from multiprocessing import get_context
from typing import Any

import mxpeak.kernels.torch.triton as backend

#: The GPUs: NVIDIA A100, H100 and H200, B200; AMD MI250 and MI300. B200 compiles only the forms for B200.
TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
}
#: The chips of each vendor, the older one first; they compile the first forms of kernels alternately.
BY_AGE = {"cuda": ("sm_80", "sm_90"), "hip": ("gfx90a", "gfx942")}
#: The newer chips, which compile the other forms alternately.
NEWER = tuple(chips[-1] for chips in BY_AGE.values())


def kernels(target: str) -> list[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """Return the kernels for a target, each with its file, signature and constants.

    The first form of each kernel is compiled for one chip per vendor, the older or the newer one alternately: the
    chips of a vendor share a compiler.  Each of the other forms, the same code for other types and options, is
    compiled for a newer chip, alternately of both vendors.  Each chip also compiles the forms for this chip only.
    """
    chips = BY_AGE[TARGETS[target][0]]
    entries, seen = [], set()
    for file in files():
        for turn, entry in enumerate(getattr(file, "COMPILED", [])):
            first = entry[0] not in seen
            seen.add(entry[0])
            if target == (chips[len(seen) % 2] if first else NEWER[turn % 2]):
                entries.append((name_of(file), *entry))
        entries += [(name_of(file), *entry) for entry in getattr(file, "COMPILED_FOR", {}).get(target, [])]
    return entries


def files() -> list[Any]:
    """Return the modules kernels/torch/triton/*.py, which name the forms of all of their kernels."""
    modules = [import_module(f"{backend.__name__}.{module.name}") for module in pkgutil.iter_modules(backend.__path__)]
    for file in modules:
        own = {value for name, value in vars(file).items() if name.endswith("_kernel")}
        assert own == {kernel for kernel, *_ in getattr(file, "COMPILED", [])}, f"{file.__name__} lacks a kernel's form"
    return modules


def name_of(file: Any) -> str:
    """Return the name of a module without its packages."""
    return str(file.__name__.rpartition(".")[2])


def options_of(file: str) -> dict[str, Any]:
    """Return the number of warps with which a file's kernels are launched."""
    module = import_module(f"{backend.__name__}.{file}")
    return {"num_warps": getattr(module, "WARPS", 4)}


def compile_for(name: str) -> list[str]:
    """Compile all kernels for one target, and return the errors."""
    import triton
    from triton.backends.compiler import GPUTarget

    wrong = []
    for file, fn, signature, constants in kernels(name):
        source = triton.compiler.ASTSource(fn=fn, signature=signature, constexprs=constants)
        try:
            made = triton.compile(source, target=GPUTarget(*TARGETS[name]), options=options_of(file))
            binary = "cubin" if name.startswith("sm") else "hsaco"
            if not made.asm.get(binary):
                wrong.append(f"{name} {file}.{fn.__name__}: no {binary}")
        except Exception as error:
            wrong.append(f"{name} {file}.{fn.__name__} {signature} {constants}: {error}")
    return wrong


def main(*targets: str) -> int:
    """Compile for the given targets or for all: both vendors in parallel, the targets of a vendor in sequence."""
    files()  # loads PyTorch and Triton once, before the processes fork
    by_vendor = [[name for name in targets or TARGETS if TARGETS[name][0] == vendor] for vendor in BY_AGE]
    with ProcessPoolExecutor(len(by_vendor), get_context("fork")) as pool:
        wrong = dict(chain.from_iterable(pool.map(compile_all, by_vendor)))
    for target, mistakes in wrong.items():
        print(f"{target}: {len(kernels(target)) - len(mistakes)} kernels compiled")
        print("\n".join(mistakes), file=sys.stderr)
    return int(any(wrong.values()))


def compile_all(targets: list[str]) -> list[tuple[str, list[str]]]:
    """Return the errors of each target."""
    return [(target, compile_for(target)) for target in targets]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
