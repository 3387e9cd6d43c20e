"""Run a small set of commands and tests on an emulated 64-bit Arm processor:  python -m tests.support.under_qemu FOLDER

The programs apt-get, dpkg-deb and qemu-aarch64 are required (on Debian, the package qemu-user). The check installs
Debian's Python for arm64 and the wheels of this environment's packages in FOLDER, without changing the system. A later
call with the same folder uses them again.

LLVM takes minutes per benchmark under emulation. The set therefore first runs here, while LLVM also compiles each
kernel for the emulated processor. Then it runs under emulation, with this machine code. With --compile-emulated, the
emulated Python compiles all kernels, as on an Arm machine.

With arguments after --, the check only runs the emulated Python with these arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]

#: The required programs, with the packages of Debian that contain them.
PROGRAMS = {"qemu-aarch64": "qemu-user", "apt-get": "apt", "dpkg-deb": "dpkg"}
#: Debian's packages for arm64, which apt-get completes by their dependencies.
DEBIAN = ("python3", "libstdc++6")
#: The packages whose wheels are installed in the versions of this environment, and completed by their dependencies.
PACKAGES = (
    "numpy", "scipy", "numba", "llvmlite", "threadpoolctl", "ml_dtypes", "array-api-compat", "rich", "pytest",
    "hypothesis",
)  # fmt: skip

#: What Linux prints for a Grace processor, from which LLVM detects Neoverse V2. The emulator would show this machine's
#: processor.
CPUINFO = """\
processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 \
sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp sve2 sveaes svepmull svebitperm \
svesha3 svesm4 flagm2 frint svei8mm svebf16 i8mm bf16 dgh bti
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0

"""

SOLVES = """
import mxpeak, numpy, scipy.sparse
rng = numpy.random.default_rng(0)
for n in (3, 61, 300):
    A, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    x, info = mxpeak.solve(A, b)
    assert info.backward_error < 1, info
S = scipy.sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(200, 200), format="csr")
x, info = mxpeak.gmres(S, numpy.ones(200), preconditioner="gs")
assert info.converged and numpy.linalg.norm(S @ x - 1) <= 1e-9 * 200**0.5, info
print("solve and gmres are accurate")
"""

#: Two lists of commands, one per core: a program and its arguments, or the text of a program.
SETS: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("mxpeak", "doctor"),
        ("mxpeak", "run hpl -N 130 --nb 32"),
        ("mxpeak", "run hpl-mxp -N 130 --nb 32 --precision fp16"),
        ("mxpeak", "run hpcg --nx 16 --ny 8 --nz 8 --mode explore --rt 0"),
    ),
    (("-c", SOLVES), ("pytest", "-o addopts= -q -p no:cacheprovider tests/contract/test_arm_tiles.py")),
)


def arguments_of(command: tuple[str, str], out: Path) -> list[str]:
    """Return the arguments of a command; a run of a benchmark writes its results to `out`."""
    program, arguments = command
    words = [arguments] if program == "-c" else shlex.split(arguments)
    return [*words, "--out", str(out)] if words[0] == "run" else words


class EmulationError(Exception):
    """The environment cannot be prepared; the text contains the remedy."""


def run(*command: str | Path, **settings: Any) -> str:
    """Run a command, and return what it prints; a failure of the command becomes an `EmulationError`."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **settings)
    if done.returncode:
        raise EmulationError(
            f"{command[0]} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout


class Emulated:
    """Python for arm64 with mxpeak's dependencies in a folder, run by QEMU."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.root, self.environment = folder / "root", folder / "environment"
        self.python = self.environment / "bin" / "python"

    def prepare(self) -> None:
        """Install everything that the folder lacks."""
        missing = {name: package for name, package in PROGRAMS.items() if shutil.which(name) is None}
        if missing:
            names = ", ".join(missing)
            raise EmulationError(f"missing: {names}; on Debian, run apt-get install {' '.join(missing.values())}")
        if not (self.folder / "complete").exists():
            self._install_python()
            self._write_interpreter()
            self._install_packages()
            (self.folder / "complete").touch()

    def _install_python(self) -> None:
        """Unpack Debian's packages for arm64, which apt-get downloads as for another computer."""
        state, cache = self.folder / "apt" / "state", self.folder / "apt" / "cache"
        for part in (state / "lists" / "partial", cache / "archives" / "partial", self.root / "proc"):
            part.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        settings = self.folder / "apt" / "apt.conf"
        settings.write_text(
            f'APT::Architecture "arm64"; APT::Architectures {{"arm64";}}; APT::Sandbox::User "root";\n'
            f'Dir::State "{state}"; Dir::State::status "{state}/status"; Dir::Cache "{cache}";\n'
        )
        variables = {**os.environ, "APT_CONFIG": str(settings)}
        run("apt-get", "update", env=variables)
        run("apt-get", "install", "-y", "--no-install-recommends", "--download-only", *DEBIAN, env=variables)
        for package in sorted((cache / "archives").glob("*.deb")):
            run("dpkg-deb", "-x", package, self.root)
        (self.root / "proc" / "cpuinfo").write_text(CPUINFO)

    def _version(self) -> str:
        """Return the version of the emulated Python, such as 3.11."""
        versions = [path.name.removeprefix("python") for path in (self.root / "usr" / "bin").glob("python3.[0-9]*")]
        if not (found := [version for version in versions if re.fullmatch(r"3\.\d+", version)]):
            raise EmulationError(f"Debian's python3 for arm64 contains no interpreter: {versions}")
        return found[0]

    def _write_interpreter(self) -> None:
        """Write a program that starts the emulated Python, and makes it find the packages next to this program."""
        self.python.parent.mkdir(parents=True, exist_ok=True)
        interpreter = self.root / "usr" / "bin" / f"python{self._version()}"
        self.python.write_text(
            f'#!/bin/sh\nexec "{shutil.which("qemu-aarch64")}" -L "{self.root}" -0 "$0" "{interpreter}" "$@"\n'
        )
        self.python.chmod(0o755)
        (self.environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")

    def _install_packages(self) -> None:
        """Install the wheels for arm64."""
        version = self._version()
        platforms = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37))]
        wanted = [f"{name}=={metadata.version(name)}" for name in PACKAGES]
        run(
            *(sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--python-version", version),
            *("--target", self.environment / "lib" / f"python{version}" / "site-packages"),
            *(word for name in platforms for word in ("--platform", name)),
            *wanted,
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables of emulated processes."""
        others = ("PYTHON", "NUMBA_", "MXPEAK_", "OPENBLAS_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        paths = f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"
        return own | {"PYTHONPATH": paths, "MXPEAK_CACHE_DIR": str(self.folder / "cache"), "MXPEAK_TUNED": "no"}

    def target(self) -> list[str]:
        """Return the LLVM triple, the processor and its features for which the emulated Numba compiles."""
        program = (
            "import json; from numba.core.registry import cpu_target; "
            "print(json.dumps(cpu_target.target_context.codegen().magic_tuple()))"
        )
        target: list[str] = json.loads(run(self.python, "-c", program, env=self.variables()))
        if target[1] != "neoverse-v2":
            raise EmulationError(f"LLVM detects {target[1]} instead of neoverse-v2 under emulation")
        if self._version() != f"{sys.version_info[0]}.{sys.version_info[1]}":
            raise EmulationError(
                f"Debian's Python for arm64 is {self._version()}, and the bytecode of this Python "
                f"{platform.python_version()} differs; use Python {self._version()} or --compile-emulated"
            )
        return target


def compile_here(target: Sequence[str], number: int, folder: Path) -> None:
    """Run a set in this process, and store the machine code of its kernels for another processor.

    Results are ignored: on this processor, BFMMLA and SME are replaced. The emulated run checks the results.
    """
    import llvmlite.binding as llvm
    import numba
    from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary, JITCPUCodegen
    from numba.core.registry import cpu_target
    from numba.core.runtime.nrtdynmod import create_nrt_module

    from tests.support.cross_compiled import OF_NUMBA, retargeted, without_engines

    triple, processor, features = target
    context = cpu_target.target_context  # created for the generic processor of NUMBA_CPU_NAME
    numba.config.CPU_NAME = numba.config.CPU_FEATURES = None
    platform.machine = lambda: "aarch64"
    llvm.get_host_cpu_name, llvm.get_host_cpu_features = lambda: processor, dict
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )
    counting = retargeted(str(llvm.parse_assembly(str(create_nrt_module(context)[0]))), triple, machine)
    optimize = JITCodeLibrary._optimize_final_module

    def optimize_and_compile(self: Any) -> None:
        optimize(self)
        text = str(self._final_module)
        code = re.sub(r"^define [^@\n]*@nrt_\w+\(.*?^\}", "", text, flags=re.MULTILINE | re.DOTALL)
        module = llvm.parse_assembly(retargeted(OF_NUMBA.sub(r"declare \1 \2(ptr)", code), triple, machine))
        if "@NRT_" in code:
            module.link_in(llvm.parse_assembly(counting))
        self.machine_code = machine.emit_object(module)
        if (portable := without_engines(text)) != text:
            self._final_module = llvm.parse_assembly(portable)

    def serialize(self: Any) -> tuple[Any, ...]:
        self._ensure_finalized()
        return self.name, "object", (self.machine_code, self._get_module_for_linking().as_bitcode())

    JITCodeLibrary._optimize_final_module = optimize_and_compile
    CPUCodeLibrary.serialize_using_object_code = serialize
    JITCPUCodegen.magic_tuple = lambda self: tuple(target)

    from mxpeak.kernels.host.engine import jit
    from mxpeak.kernels.host.engine.arm import bfmmla, sme
    from mxpeak.runtime import compile as first_uses

    bfmmla.is_available = sme.is_available = lambda: True
    first_uses.MAX_PROCESSES = 1  # other processes would not store machine code for the other processor
    jit._DiskCache.load_overload = lambda *_: None  # which cannot run here
    for at, command in enumerate(SETS[number]):
        start = time.monotonic()
        run_here(command, folder / "results" / f"compiled-{number}-{at}")
        print(f"{time.monotonic() - start:.0f} s for {' '.join(command)[:60]}", flush=True)


def run_here(command: tuple[str, str], out: Path) -> None:
    """Run a command of a set in this process."""
    arguments = arguments_of(command, out)
    with suppress(Exception, SystemExit):
        if command[0] == "-c":
            exec(arguments[0], {})
        elif command[0] == "pytest":
            import pytest

            pytest.main(arguments)
        else:
            from mxpeak.cli.main import main as mxpeak

            mxpeak(arguments)


def run_emulated(emulated: Emulated, number: int) -> bool:
    """Run a set under emulation, print the end of each command's output, and return whether all commands succeeded.

    A skipped test counts as a failure, because the emulated processor supports all tests of the set.
    """
    succeeded = True
    for at, command in enumerate(SETS[number]):
        start, program = time.monotonic(), command[0]
        arguments = arguments_of(command, emulated.folder / "results" / f"{number}-{at}")
        words = [str(emulated.python), *([program] if program == "-c" else ["-m", program]), *arguments]
        done = subprocess.run(words, env=emulated.variables(), cwd=REPOSITORY, capture_output=True, text=True)
        skipped = program == "pytest" and re.search(r"\b\d+ skipped\b", done.stdout) is not None
        passed = done.returncode == 0 and not skipped
        lines = (done.stdout if passed else f"{done.stdout}{done.stderr}").strip().splitlines()
        name = "solve and gmres" if program == "-c" else " ".join(command)
        verdict = "passed" if passed else f"FAILED with status {done.returncode}{' and skipped tests' * skipped}"
        print(f"{verdict}  {name}  {time.monotonic() - start:.0f} s")
        print(*(f"  {line}" for line in (lines[-8:] if passed else lines)), sep="\n", flush=True)
        succeeded &= passed
    return succeeded


def machine_code(folder: Path) -> int:
    """Return the number of files with machine code in a folder."""
    return len(list(folder.rglob("*.nbc")))


def small_set(emulated: Emulated, compile_emulated: bool) -> int:
    """Run both sets, and return 0 if all commands succeeded under emulation."""
    cache, start = emulated.folder / "cache", time.monotonic()
    cache.mkdir(mode=0o700, exist_ok=True)
    shutil.rmtree(emulated.folder / "results", ignore_errors=True)
    if not compile_emulated:
        target = json.dumps(emulated.target())
        generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+avx,+f16c"}
        command = [sys.executable, "-m", "tests.support.under_qemu", str(emulated.folder), "--compile", target, "--set"]
        with open(emulated.folder / "compiled.txt", "w") as log:
            started = [
                subprocess.Popen(
                    [*command, str(n)], env=emulated.variables() | generic, stdout=log, stderr=log, cwd=REPOSITORY
                )
                for n in range(len(SETS))
            ]
            statuses = [process.wait() for process in started]
        if any(statuses):
            raise EmulationError(f"compilation ended with {statuses}; see {emulated.folder / 'compiled.txt'}")
        print(f"{machine_code(cache)} functions compiled here, {time.monotonic() - start:.0f} s", flush=True)
    before, ended = machine_code(cache), [False] * len(SETS)

    def emulate(number: int) -> None:
        ended[number] = run_emulated(emulated, number)

    threads = [threading.Thread(target=emulate, args=(number,)) for number in range(len(SETS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{machine_code(cache) - before} functions compiled under emulation; {time.monotonic() - start:.0f} s in all, "
        f"with {used.ru_utime + used.ru_stime:.0f} s of processor time"
    )
    return 0 if all(ended) else 1


def main() -> int:
    """Prepare the folder, and run the small set or the given arguments."""
    own, given = sys.argv[1:], list[str]()
    if "--" in own:
        own, given = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.support.under_qemu", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the emulated Python and the machine code")
    parser.add_argument("--compile-emulated", action="store_true", help="compile kernels under emulation (slow)")
    parser.add_argument("--compile", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--set", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(own)
    if args.compile:
        compile_here(args.compile, args.set, args.folder)
        return 0
    emulated = Emulated(args.folder.resolve())
    try:
        emulated.prepare()
        if given:
            return subprocess.run([str(emulated.python), *given], env=emulated.variables()).returncode
        return small_set(emulated, args.compile_emulated)
    except EmulationError as failure:
        print(failure, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
