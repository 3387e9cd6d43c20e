"""Compile every Triton kernel for GPUs that need not be there:  python -m tests.triton.compile_kernels [TARGET...]

Each file kernels/torch/triton/*.py names the signatures and constants that its kernels are used with.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import Any

import mxpeak.kernels.torch.triton as backend

#: The GPUs: NVIDIA A100, H100 and H200; AMD MI250 and MI300.
TARGETS = {
    "sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
}  # fmt: skip
#: The newer chip of each vendor, whose compilers take the forms of a kernel by turns.
NEWER = ("sm_90", "gfx942")


def kernels(target: str) -> list[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """Every kernel with its file, signatures and constants.

    All GPUs get the first form of each kernel, and the forms that are for them alone.  Of the other forms, which are
    the same code for other types and options, each goes to a newer chip, of one vendor and the other in turn.
    """
    found = []
    for module in pkgutil.iter_modules(backend.__path__):
        file = import_module(f"{backend.__name__}.{module.name}")
        assert file.COMPILED, f"{module.name} has no kernel"
        seen: set[str] = set()
        for turn, entry in enumerate(file.COMPILED):
            first = entry[0].__name__ not in seen
            seen.add(entry[0].__name__)
            if first or target == NEWER[turn % 2]:
                found.append((module.name, *entry))
        found += [(module.name, *entry) for entry in getattr(file, "COMPILED_FOR", {}).get(target, [])]
    return found


def options_of(file: str) -> dict[str, Any]:
    """With how many warps a file's kernels are launched."""
    module = import_module(f"{backend.__name__}.{file}")
    return {"num_warps": getattr(module, "WARPS", 4)}


def compile_for(name: str) -> list[str]:
    """Compile all kernels for one target; what went wrong."""
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


if __name__ == "__main__":
    failed = False
    for target in sys.argv[1:] or TARGETS:
        mistakes = compile_for(target)
        print(f"{target}: {len(kernels(target)) - len(mistakes)} kernels compiled")
        print("\n".join(mistakes), file=sys.stderr)
        failed = failed or bool(mistakes)
    sys.exit(int(failed))
