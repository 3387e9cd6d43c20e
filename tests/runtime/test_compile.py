"""Test compilation at first use in several processes that may fail."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.kernels.host.engine import cache, first_use, matrix_engines
from mxpeak.kernels.host.engine.first_use import LOADED, LOADING, LOADING_PANELS, PANELS_LOADED, compile_from, entries
from mxpeak.kernels.host.engine.jit import INT, INTEGERS, jit
from mxpeak.kernels.host.lu import operands, solves, substitution
from mxpeak.runtime import compile as first_uses
from mxpeak.runtime import placement
from mxpeak.runtime.compile import compile_side_by_side
from mxpeak.runtime.placement import leaves_panels
from mxpeak.verbs.scan.config import ScanConfig

SPARSE = ["--nx", "16", "--ny", "8", "--nz", "8", "--mode", "explore", "--rt", "0"]
SHORT = [*SPARSE, "--iterations", "5", "--threshold", "1e-5"]
#: Uses with declared entry points, and runs with these uses.
DECLARED = {
    "norms, float64 general": ["norms", "-N", "64"],
    "norms, float64 general deterministic": ["norms", "-N", "64", "--deterministic"],
    "norms, complex64 hermitian": ["norms", "-N", "64", "--dtype", "complex64", "--structure", "hermitian"],
    "norms, bfloat16 general": ["norms", "-N", "64", "--dtype", "bfloat16"],
    "hpcg, rows surface_last fp64/fp64/fp64/fp64 fp64 fp64": ["hpcg", *SPARSE],
    "hpg-mxp, packed greedy fp64/fp64/fp64/fp64 fp64 fp64, packed greedy fp8/fp8/fp8/fp8 fp32 fp32": [
        "hpg-mxp",
        *SHORT,
    ],
    "hpg-mxp, packed greedy fp64/fp64/fp64/fp64 fp64 fp64, packed greedy fp8/fp8/fp8/fp8 fp32 fp16": [
        "hpg-mxp",
        *SHORT,
        "--krylov-precision",
        "fp16",
    ],
    "hpg-mxp, packed greedy fp64/fp64/fp64/fp64 fp64 fp64, packed greedy fp8/fp8/fp8/fp8 bf16 fp32": [
        "hpg-mxp",
        *SHORT,
        "--mg-vectors",
        "bf16",
        "--quick",
    ],
}
#: Declared uses of `gmres`, and its arguments.
DECLARED_SOLVES = {
    "gmres, amg coloured bf16 fp32 True False": {"preconditioner": "amg"},
    "gmres, gs coloured bf16 fp32 True False": {"preconditioner": "gs"},
}


class Recorded:
    """An entry point that records its compilation."""

    module = "some.module"

    def __init__(self, number: int, done: list[int], *, cold: bool = True):
        self._number, self._done, self._cold = number, done, cold

    def is_cold(self) -> bool:
        return self._cold

    def compile(self) -> None:
        self._done.append(self._number)
        if self._number == 2:
            raise ValueError("what fails here is left to the use itself")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of compiled ones among five entry points, of which the second is cached."""
    done: list[int] = []
    five = [Recorded(number, done, cold=number != 1) for number in range(5)]
    monkeypatch.setattr(first_use, "entries", lambda name: five)
    monkeypatch.setattr(first_uses, "one_core_each", lambda affinity: [0, 1, 2])
    return done


def helpers(monkeypatch: pytest.MonkeyPatch, start: Callable[[int], Any]) -> list[Any]:
    """Return the list of helpers, which `start` starts with the queue's descriptor."""
    started: list[Any] = []

    def helper(queue: int, name: str, cores: Any) -> Any:
        started.append(start(queue))
        return started[-1]

    monkeypatch.setattr(first_uses, "_helper", helper)
    return started


def run(code: str, queue: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=queue)


def test_what_is_cold_is_compiled_here_as_far_as_no_helper_does(
    done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = helpers(monkeypatch, lambda queue: run("", queue))
    compile_side_by_side("any")
    assert done == [0, 2, 3, 4]
    assert [one.returncode for one in started] == [0, 0], "none is left"


def test_a_helper_that_dies_or_hangs_with_an_entry_point_blocks_no_other(
    done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_uses, "PATIENCE_S", 0.1)

    def start(queue: int) -> Any:
        os.read(queue, 1)
        return run("import time; time.sleep(60)", queue)

    started = helpers(monkeypatch, start)
    compile_side_by_side("any")
    assert done == [3, 4]
    assert [one.returncode for one in started] == [-9, -9]


def test_entry_points_with_the_same_inner_functions_are_compiled_by_one_process() -> None:
    shares = first_use.shares("hpcg, rows surface_last fp64/fp64/fp64/fp64 fp64 fp64")
    shared = [{entry.module for entry in share} for share in shares if len(share) > 1]
    assert sorted(shared, key=str) == [{module} for module in sorted(first_use.TOGETHER)]
    listed = entries("hpcg, rows surface_last fp64/fp64/fp64/fp64 fp64 fp64")
    assert sorted(map(str, [entry for share in shares for entry in share])) == sorted(map(str, listed))


def test_no_memory_for_helpers_is_no_error(done: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(queue: int) -> Any:
        raise OSError("no more processes")

    helpers(monkeypatch, start)
    compile_side_by_side("any")
    assert done == [0, 2, 3, 4]


@pytest.mark.parametrize("lacking", ["cores", "an interpreter"])
def test_without_other_cores_or_an_interpreter_all_is_left_to_the_use(
    lacking: str, done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = helpers(monkeypatch, lambda queue: run("", queue))
    if lacking == "cores":
        monkeypatch.setattr(first_uses, "one_core_each", lambda affinity: [0])
    else:
        monkeypatch.setattr(sys, "executable", "/usr/sbin/a-server")
    compile_side_by_side("any")
    assert done == started == []


def test_an_interrupt_ends_the_helpers(done: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    started = helpers(monkeypatch, lambda queue: run("import time; time.sleep(60)", queue))

    def interrupted(queue: int, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(first_use, "compile_from", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_side_by_side("any")
    assert [one.returncode for one in started] == [-9, -9]


def test_a_helper_compiles_what_it_reads_into_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXPEAK_CACHE_DIR", str(tmp_path))
    queue, end = os.pipe()
    os.write(end, bytes([entries(LOADING).index(first_use.Entry("engine.team"))]))
    os.close(end)
    assert first_uses._helper(queue, LOADING, sorted(os.sched_getaffinity(0))).wait() == 0
    os.close(queue)
    assert {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")} == {"team.await_work", "team.await_done"}


def test_the_queue_is_empty_where_others_could_still_write() -> None:
    queue, end = os.pipe()
    os.set_blocking(queue, False)
    compile_from(queue, LOADING)
    os.close(end)
    os.close(queue)


def test_entry_points_are_cached_if_no_other_process_writes_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXPEAK_CACHE_DIR", str(tmp_path))
    cache.cache_directory.cache_clear()
    try:
        folder = cache.cache_directory()
        with (folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            compiled: list[Any] = []

            @jit()
            def filled(a, value):
                for i in range(a.shape[0]):
                    a[i] = value

            thread = threading.Thread(target=lambda: compiled.append(filled.compile((INTEGERS, INT))))
            thread.start()
            thread.join(1.0)
            assert not list(folder.rglob("*.nbi"))
            fcntl.flock(file, fcntl.LOCK_UN)
            thread.join()
        filled(a := np.zeros(3, np.int64), 7)
        assert a.tolist() == [7, 7, 7]
        assert list(folder.rglob("*.nbi"))
    finally:
        cache.cache_directory.cache_clear()


def test_a_processors_own_products_are_compiled_with_what_all_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for engines, avx512 in product(((), matrix_engines.ENGINES), (False, True)):
        monkeypatch.setattr(matrix_engines, "chosen", lambda engines=engines: engines)
        monkeypatch.setattr("mxpeak.kernels.host.engine.vector_ir.HAS_AVX512", avx512)
        every = {entry for entry in entries(LOADING) if entry.name}
        wanted = every - {*first_use.declared(LOADED)}
        entry_points = {getattr(import_module(f"{first_use.PACKAGE}.{entry.module}"), entry.name) for entry in wanted}
        by_engines = {*solves.ENTRIES, *operands.BY_ENGINES} if engines else set()
        assert entry_points == by_engines | ({*substitution.ENTRIES} if avx512 else set())


@pytest.mark.parametrize("use", [*DECLARED, *DECLARED_SOLVES])
def test_every_entry_point_that_is_declared_is_there(use: str) -> None:
    listed = entries(use)
    assert listed
    for entry in listed:
        entry.is_cold()  # finds the function
    assert len({*listed}) == len(listed)


def test_a_use_that_is_not_declared_has_no_entry_points() -> None:
    assert entries("something else") == []


#: A run or a solve, and the functions that it looks up in the disk cache for argument types that were not declared.
#: `_DiskCache.load_overload` gets the argument types of a call as a tuple, and those of a decorator as a signature.
USE_AFTER_COMPILATION = """
import json, sys
from mxpeak.kernels.host.engine import jit
from mxpeak.kernels.host.engine.first_use import PACKAGE, entries
from mxpeak.runtime import compile as first_uses
from mxpeak.runtime import placement
name, arguments = sys.argv[1], json.loads(sys.argv[2])
uses, wanted, declared = [], [], set()
def declare(use, cores=None):
    uses.append(use)
    declared.update((f"{PACKAGE}.{entry.module}", entry.name, entry.types) for entry in entries(use))
    if use == name:
        wanted.clear()
load = jit._DiskCache.load_overload
def load_overload(self, sig, target_context):
    function = self._py_func
    if isinstance(sig, tuple):
        wanted.append((function.__module__, function.__qualname__, sig))
    return load(self, sig, target_context)
jit._DiskCache.load_overload = load_overload
first_uses.compile_side_by_side = declare
first_uses.cold_shares = lambda name: []
if isinstance(arguments, list):
    from mxpeak.cli.main import main
    status = main(arguments)
else:
    import mxpeak, numpy
    from scipy.sparse import diags_array
    off = -numpy.ones(399)
    A = diags_array([off, numpy.full(400, 2.0), off], offsets=[-1, 0, 1]).tocsr()
    status = 0 if mxpeak.gmres(A, numpy.ones(400), **arguments)[1].converged else 1
assert name in uses, uses
late = {(module, function) for module, function, types in wanted if (module, function, types) not in declared}
print(json.dumps([status, sorted(".".join(function) for function in late)]))
"""


def late_entry_points(use: str, arguments: Any) -> list[str]:
    """Return the entry points of a use that are not declared."""
    command = [sys.executable, "-c", USE_AFTER_COMPILATION, use, json.dumps(arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "MXPEAK_TUNED": "no"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status, late = json.loads(done.stdout.splitlines()[-1])
    assert status in (0, 4)
    return list(late)


@pytest.mark.parametrize("use", DECLARED)
def test_a_run_compiles_no_entry_point_that_is_not_declared(use: str, tmp_path: Path) -> None:
    arguments = [*DECLARED[use], "--ranks", "1", "--kernels", "host", "--quiet", "--out", str(tmp_path / "out")]
    assert late_entry_points(use, ["run", *arguments]) == []


@pytest.mark.parametrize("use", DECLARED_SOLVES)
def test_a_solve_compiles_no_entry_point_that_is_not_declared(use: str) -> None:
    assert late_entry_points(use, DECLARED_SOLVES[use]) == []


def test_an_entry_point_whose_types_cannot_be_compiled_is_left_to_the_use(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = first_use.Entry("norms.tile_pass", "a_function_of_another_version", (INT,))
    monkeypatch.setattr(first_use, "entries", lambda name: [unknown] * 3)
    with pytest.raises(AttributeError):
        unknown.is_cold()
    compile_side_by_side("some use")


#: Runs in a fresh process on a backend for devices; prints after each run the loaded host modules that compile when
#: they are loaded, also for runs in which a device leaves its panels to the host.
RUNS_ON_TORCH = """
import json, sys
from mxpeak.cli.main import main
from mxpeak.kernels.host.engine.first_use import LOADED, PACKAGE
def loaded():
    return [module for module in LOADED if f"{PACKAGE}.{module}" in sys.modules]
found = {}
for benchmark, arguments in json.loads(sys.argv[1]).items():
    assert main(["run", benchmark, *arguments]) == 0
    found[benchmark] = loaded()
from mxpeak.kernels.choose import choose
choose("torch", "cpu", 1, panels=True)
found["panels"] = loaded()
print(json.dumps(found))
"""
BENCHMARKS = {"hpl": ["-N", "64"], "hpl-mxp": ["-N", "64"], "hpg-mxp": SHORT, "norms": ["-N", "64"]}


def test_a_device_of_one_rank_compiles_nothing_for_its_host_but_the_panels_that_it_leaves_to_it(tmp_path: Path) -> None:
    place = ["--kernels", "torch", "--device", "cpu", "--ranks", "1", "--threads", "1", "--quiet"]
    runs = {name: [*asked, *place, "--out", str(tmp_path / name)] for name, asked in BENCHMARKS.items()}
    command = [sys.executable, "-c", RUNS_ON_TORCH, json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found.pop("panels")) == sorted(PANELS_LOADED)
    assert found == {name: [] for name in BENCHMARKS}
    assert [one.module for one in entries(LOADING_PANELS)] == list(PANELS_LOADED)


@pytest.mark.parametrize(
    ("config", "leaves"),
    [
        (HplConfig(kernels="torch", grid=((2, 1),)), True),
        (HplConfig(kernels="torch", grid=((1, 2),)), False),
        (HplConfig(kernels="host", grid=((2, 1),)), False),
        (HplMxpConfig(kernels="torch", grid=((2, 1),)), False),
    ],
)
def test_panels_are_left_to_the_host_where_several_ranks_share_them(config: Any, leaves: bool) -> None:
    assert leaves_panels(config, 2) == leaves


@pytest.mark.parametrize(("cold", "count"), [(True, 1), (False, 0)])
def test_a_slow_first_use_is_announced_only_if_it_compiles(
    cold: bool, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_uses, "SILENT_S", 0.01)
    monkeypatch.setattr(first_use, "entries", lambda name: [Recorded(0, [], cold=cold)])
    first_uses.compile_in_turn(Solo(), "a use", lambda: threading.Event().wait(0.1), "any")
    assert capsys.readouterr().err.count("a use: compiling its kernels") == count


def test_a_terminal_shows_how_much_is_compiled_and_about_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cold, clock = [[0, 1, 2, 3], [1, 2, 3], [3], []], [0.0, 30.0]
    ended = threading.Event()
    monkeypatch.setattr(ended, "wait", lambda seconds: False)
    monkeypatch.setattr(first_uses, "cold_shares", lambda name: cold.pop(0))
    monkeypatch.setattr(first_uses.time, "monotonic", lambda: clock.pop(0))
    first_uses._show_progress("any", ended)
    shown = capsys.readouterr().err.split(first_uses.ERASE)
    assert shown == ["", "compiled 3 of 4 groups of kernels, about 10 s left", ""]


@pytest.mark.parametrize("width", [None, 80])
def test_only_a_terminal_shows_progress(width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(first_uses, "SILENT_S", 0.01)
    monkeypatch.setattr(first_uses, "terminal_width", lambda stream, environ: width)
    monkeypatch.setattr(first_uses, "_show_progress", lambda name, ended: shown.append(name))
    with first_uses.announced("a use", "any") as compiles:
        compiles.set()
        threading.Event().wait(0.1)
    assert shown == ([] if width is None else ["any"])


def test_machine_code_that_appears_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "cache_directory", lambda: tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "panel_1").mkdir()
    before = first_uses._machine_code()
    (tmp_path / "panel_1" / "panel.factor-1.py311.1.nbc").touch()
    assert first_uses._machine_code() == before + 1


def test_a_user_without_a_home_has_no_machine_code_of_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container that runs as an unknown user is such a case."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "cache_directory", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "triton", sys)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert first_uses._machine_code() == 0


@pytest.mark.parametrize(("cold", "count"), [([3], 1), ([], 0)])
def test_a_cache_that_lacks_some_kernels_is_announced(
    cold: list[int], count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_uses, "SILENT_S", 0.01)
    monkeypatch.setattr(first_uses, "_machine_code", lambda: 0)
    monkeypatch.setattr(cache, "is_cached", lambda: True)
    monkeypatch.setattr(placement, "cold_shares", lambda name: cold)
    monkeypatch.setattr(placement, "compile_side_by_side", lambda name, cores: threading.Event().wait(0.1))
    config = ScanConfig(kernels="host", device="cpu", threads=1)
    bound = placement.bind_to_cores(Solo(), 1)
    try:
        placement.load_kernels(config, bound, Solo())
    finally:
        bound.release()
    assert capsys.readouterr().err.count("first use: compiling kernels into") == count
