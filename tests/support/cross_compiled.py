"""Compile the host's kernels for other processors:  python -m tests.support.cross_compiled [CPU...]

Numba compiles each kernel for a generic x86-64 processor, as a user's first call does. LLVM then compiles the same code
for each named 64-bit Arm processor. The check fails if a kernel contains an instruction of x86, or if LLVM cannot
select instructions for it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

#: Processors of Grace and Graviton4, of Apple's M1, and of Fugaku, with the names of their systems.
PROCESSORS = {
    "neoverse-v2": "aarch64-unknown-linux-gnu",
    "apple-m1": "arm64-apple-macosx",
    "a64fx": "aarch64-unknown-linux-gnu",
}
#: The variable with the parts that a process compiles.
PARTS = "CROSS_COMPILED_PARTS"
#: The part whose functions use matrix engines, and thus BFMMLA and SME.
UNITS = "products of 16-bit operands"
#: The functions of LLVM that exist only for x86.
ONLY_X86 = re.compile(r"call [^\n]*(@llvm\.x86\.[\w.]+|asm (?:sideeffect )?\")")
#: Numba's reference counting, which is linked after LLVM has selected instructions of x86 for it.
OF_NUMBA = re.compile(r"^define [^@\n]*?(void|ptr) (@NRT_\w+)\(.*?^\}", re.MULTILINE | re.DOTALL)
#: BFMMLA, which exists only for processors with FEAT_BF16, and its first argument.
BFMMLA = re.compile(r"(?:tail )?call <4 x float> @llvm\.aarch64\.neon\.bfmmla\(<4 x float> (%[\w.\"]+), [^\n]*")


#: The functions for SME, which have its features themselves, up to their attributes.
SME = re.compile(r"^(define [^@\n]*@mxpeak_sme_[\w.]+\([^\n]*?\)) [^\n]*\{.*?^\}", re.MULTILINE | re.DOTALL)


def without_bfmmla(code: str) -> str:
    """Replace BFMMLA by an operation that every processor has, so that LLVM can compile the code."""
    return BFMMLA.sub(r"fadd <4 x float> \1, zeroinitializer", code)


def without_engines(code: str) -> str:
    """Replace BFMMLA, and remove the code for SME, so that LLVM can compile the code for x86."""
    return SME.sub(r"\1 {\nret void\n}", without_bfmmla(code))


def machine(name: str) -> Any:
    """Return LLVM's compiler for a processor."""
    import llvmlite.binding as llvm

    target = llvm.Target.from_triple(PROCESSORS[name])
    return target.create_target_machine(cpu=name, opt=2, reloc="pic", codemodel="default")


def retargeted(code: str, triple: str, of_processor: Any) -> str:
    """Return LLVM's text of a module with the system and the data layout of another processor."""
    code = re.sub(r'^target triple = ".*"$', f'target triple = "{triple}"', code, flags=re.MULTILINE)
    layout = f'target datalayout = "{of_processor.target_data}"'
    return re.sub(r'^target datalayout = ".*"$', layout, code, flags=re.MULTILINE)


def compile_for(code: str, name: str) -> int:
    """Compile LLVM's text of a module for a processor, and return the size of the machine code in bytes."""
    import llvmlite.binding as llvm

    of_processor = machine(name)
    module = llvm.parse_assembly(retargeted(code, PROCESSORS[name], of_processor))
    module.verify()
    return len(of_processor.emit_object(module))


def compile_parts(parts: list[str], names: list[str]) -> int:
    """Compile some parts of the host's kernels for the named processors, and return 1 if a function failed."""
    import llvmlite.binding as llvm
    from numba.core.codegen import JITCodeLibrary

    platform.machine = lambda: "aarch64"  # otherwise kernels with instructions of x86 would be selected
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    from mxpeak.kernels.host.engine.arm import bfmmla, sme
    from tests.support import compiled

    bfmmla.is_available = sme.is_available = lambda: True
    counts, failures, optimize = Counter[str](), list[str](), JITCodeLibrary._optimize_final_module

    def optimize_and_compile(self: Any) -> None:
        optimize(self)
        code = OF_NUMBA.sub(r"declare \1 \2(ptr)", str(self._final_module))
        if found := ONLY_X86.search(code):
            failures.append(f"{self.name}: contains {found[1]}")
        portable, with_sme = without_bfmmla(code), SME.search(code) is not None
        if with_sme or portable != code:
            self._final_module = llvm.parse_assembly(without_engines(str(self._final_module)))
        for name in names:
            with_bfmmla = portable != code and name in bfmmla.PROCESSORS
            try:
                counts[name] += compile_for(code if with_bfmmla else portable, name) > 0
                counts["BFMMLA"] += with_bfmmla
                counts["SME"] += with_sme
            except RuntimeError as error:
                failures.append(f"{self.name} for {name}: {str(error).splitlines()[0]}")

    JITCodeLibrary._optimize_final_module = optimize_and_compile  # before the code for x86 is selected
    for part in parts:
        compiled.PARTS[part]()
    engines = ["BFMMLA", "SME"] if any(name in bfmmla.PROCESSORS for name in names) else ["SME"]
    expected = [*names, *(engines if UNITS in parts else ())]
    counted = ", ".join(f"{counts[name]} functions for {name}" for name in expected)
    print(*failures, f"{', '.join(parts)}: {counted}, {len(failures)} failures", sep="\n", flush=True)
    return int(bool(failures) or not all(counts[name] for name in expected))


def main(names: list[str]) -> int:
    """Share the parts among one process per core. Each has an empty cache, and its processor is a generic one."""
    names = names or list(PROCESSORS)
    if given := os.environ.get(PARTS):
        return compile_parts(given.split(";"), names)
    from tests.support import compiled

    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        generic = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
        command = [sys.executable, "-m", "tests.support.cross_compiled", *names]
        started = [
            subprocess.Popen(command, env={**generic, PARTS: ";".join(share), "MXPEAK_CACHE_DIR": f"{folder}/{at}"})
            for at in range(cores)
            if (share := list(compiled.PARTS)[at::cores])
        ]
        return int(any([process.wait() for process in started]))  # LLVM ends a process by a signal at some errors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
