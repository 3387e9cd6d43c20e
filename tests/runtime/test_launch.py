"""Test the detection of the launcher, and compare the requested ranks with the started ones."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mxpeak.comm import transports
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.engine import cache
from mxpeak.runtime import launch
from mxpeak.runtime.launch import bind, code_of, confirm, local_rank, respawn, start
from mxpeak.runtime.launcher import launcher


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, ("mpiexec (PMI)", 3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("mpiexec (Open MPI)", 0, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, ("srun", 5, 6)),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "77"}, None),  # a batch script outside of srun
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ("torchrun", 1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),  # any program may set RANK
        (  # srun starts torchrun once per node
            {
                "RANK": "5",
                "WORLD_SIZE": "8",
                "TORCHELASTIC_RUN_ID": "x",
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
            },
            ("torchrun", 5, 8),
        ),
        ({"PMI_RANK": "x", "PMI_SIZE": "8"}, None),
    ],
)
def test_the_launcher_is_known_by_its_variables(environ: dict[str, str], found: object) -> None:
    assert launcher(environ) == found


def test_open_mpis_mpiexec_over_another_library_is_named_before_mpi_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_mpi_vendor", lambda: "MPICH")
    with pytest.raises(
        UsageError, match=r"belongs to Open MPI, but MPI for Python uses the library of MPICH.*mpiexec -n 2 mxpeak"
    ):
        launch._refuse_other_launcher(("mpiexec (Open MPI)", 0, 2))
    launch._refuse_other_launcher(("mpiexec (PMI)", 0, 2))
    monkeypatch.setattr(launch, "_mpi_vendor", lambda: "Open MPI")
    launch._refuse_other_launcher(("mpiexec (Open MPI)", 0, 2))


def test_without_a_launcher_there_is_one_rank() -> None:
    assert start().size == 1


def test_what_was_started_must_be_what_was_asked_for() -> None:
    confirm("auto", None, Solo())
    confirm("solo", 1, Solo())
    with pytest.raises(UsageError, match="--ranks 4 was requested, but 1 rank was started; run mpiexec -n 4"):
        confirm("auto", 4, Solo())

    def on_three(comm: object) -> None:
        with pytest.raises(UsageError, match="--comm solo supports only one rank, but 3 ranks were started"):
            confirm("solo", None, comm)  # type: ignore[arg-type]

    run_ranks(3, on_three)


@pytest.mark.parametrize(
    ("environ", "number"),
    [
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "3", "SLURM_LOCALID": "0"}, 3),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "4"}, 4),
    ],
)
def test_the_number_on_the_node_is_what_the_own_launcher_says(environ: dict[str, str], number: int) -> None:
    assert local_rank(Solo(), environ) == number


def test_ranks_that_no_launcher_numbered_are_counted_on_their_host() -> None:
    silent = {"PMI_RANK": "0", "PMI_SIZE": "3"}
    assert run_ranks(3, lambda comm: local_rank(comm, silent)) == [0, 1, 2]


def test_what_carries_messages_must_be_what_was_asked_for() -> None:
    group = Solo()
    group.name = "torch"
    confirm("torch", None, group)
    confirm("auto", None, group)
    with pytest.raises(UsageError, match="--comm mpi conflicts with torch, which started 1 ranks; run mpiexec"):
        confirm("mpi", None, group)


def under(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_torch_under_mpiexec_needs_to_know_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    under(monkeypatch, PMI_RANK="0", PMI_SIZE="2")
    with pytest.raises(UsageError, match="MASTER_ADDR and MASTER_PORT are not set; run torchrun --nproc-per-node 2"):
        start("torch")


def test_mpi_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    with pytest.raises(UsageError, match="torchrun, which does not start MPI; run mpiexec -n 2"):
        start("mpi")


def test_more_ranks_than_memory_holds_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "available_memory_bytes", lambda: 3 * launch.RANK_BYTES)
    monkeypatch.setattr(launch, "code_of", lambda *_, **streams: 0)
    monkeypatch.setattr(launch, "_has", lambda package: package == "mpi4py")
    assert respawn(3, []) == 0
    with pytest.raises(
        ResourceError, match=r"4 ranks on this host need at least 100 MiB \(25 MiB each.*at most 3 ranks"
    ):
        respawn(4, [])


def test_torch_that_is_not_installed_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_has", lambda package: package != "torch")
    for attempt in (lambda: start("torch"), lambda: respawn(2, [], "torch")):
        with pytest.raises(UsageError, match=r"needs PyTorch, .*; run pip install"):
            attempt()


def test_torch_is_not_imported_before_it_is_asked_for() -> None:
    code = "import sys, mxpeak.runtime.launch as l; l.start(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_binding_returns_the_cores_there_were_before() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert bind(mine[:1]) == mine
    assert bind(mine) == mine[:1]


def test_a_cache_folder_that_cannot_be_made_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file, where a folder would be needed")
    monkeypatch.setenv("MXPEAK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache.cache_directory.cache_clear()
    try:
        folder = cache.cache_directory()
        assert folder.parent == tmp_path / "xdg" / "mxpeak"
        assert not cache.is_cached()
        assert cache.token() == cache.token()
    finally:
        cache.cache_directory.cache_clear()


def test_the_cache_of_a_user_without_a_home_is_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MXPEAK_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # like a user without an entry in the database
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    cache.cache_directory.cache_clear()
    try:
        assert cache.cache_directory().parent == tmp_path / "temporary" / f"mxpeak-{os.getuid()}"
        assert os.listdir(tmp_path) == ["temporary"]
    finally:
        cache.cache_directory.cache_clear()


def test_machine_code_of_others_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("MXPEAK_CACHE_DIR", str(tmp_path / "open"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache.cache_directory.cache_clear()
    try:
        with pytest.warns(
            RuntimeWarning,
            match=r"does not use .*open.* for compiled kernels: all users may write to it; run chmod o-w ",
        ):
            assert cache.cache_directory().parent == tmp_path / "xdg" / "mxpeak"
        cache.cache_directory.cache_clear()
        (tmp_path / "open").chmod(0o775)
        assert cache.cache_directory().parent == tmp_path / "open"
        cache.cache_directory.cache_clear()
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        with pytest.warns(RuntimeWarning, match=f"it belongs to user {me}, not to {me + 1}"), pytest.raises(OSError):
            cache.cache_directory()
    finally:
        cache.cache_directory.cache_clear()


def test_kernels_are_compiled_into_the_cache_and_not_into_the_package(tmp_path: Path) -> None:
    environ = {**os.environ, "MXPEAK_CACHE_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    package = Path(cache.__file__).parent
    before = sorted(package.rglob("*.nb*"))
    command = [sys.executable, "-c", "import mxpeak.kernels.host.engine.team"]
    subprocess.run(command, env=environ, check=True)
    assert sorted(package.rglob("*.nb*")) == before
    assert list(tmp_path.rglob("team.await_work-*.nbi"))


@pytest.fixture(params=["/proc", "no /proc"])
def open_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run with the open files of processes in /proc, and without."""
    if request.param != "/proc":
        monkeypatch.setattr("mxpeak.runtime.launch.OPEN_FILES", tmp_path / "missing")


@pytest.mark.usefixtures("open_files")
@pytest.mark.parametrize(
    ("word", "status", "expected"),
    [
        ("3", 9, 3),  # a rank ended all with 3, and mpiexec reports the SIGKILL for the other ranks
        ("143", 9, 143),
        ("1", 0, 1),  # ... or reports nothing
        ("", 9, 137),  # killed ranks leave no exit code
        ("6", 6, 6),
        ("", 6, 134),  # by SIGABRT, with which a library ends after an internal error
        ("", 3, 3),
    ],
)
def test_ranks_end_with_the_code_of_the_rank_that_ended_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, status: int, expected: int
) -> None:
    mpiexec = tmp_path / "mpiexec"
    leave = f"from mxpeak.runtime.parent_watch import write_exit_code; write_exit_code({word})" if word else ""
    mpiexec.write_text(f"#!{sys.executable}\nimport sys\n{leave}\nsys.exit({status})\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr("mxpeak.runtime.launch._mpiexec", lambda: str(mpiexec))
    monkeypatch.setattr("mxpeak.runtime.launch._has", lambda package: True)
    assert respawn(2, [], "mpi") == expected


#: Tells its parent to end twice, and writes which signals the parent got, in its order of signals.
TWICE = """
import os, signal, time
from mxpeak.runtime.parent_watch import first_signal
told = []
signal.signal(signal.SIGTERM, lambda number, _: told.append(first_signal(number)))
os.kill(os.getppid(), signal.SIGINT)
while not told:
    time.sleep(0.01)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(0.3)
open("told", "w").write(str(told))
"""


def test_a_signal_that_comes_while_the_command_is_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = subprocess.Popen, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        started.append(start(*args, **kwargs))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setattr("mxpeak.runtime.launch.subprocess.Popen", interrupted)
    assert code_of([sys.executable, "-c", "import time; time.sleep(600)"]) == 128 + signal.SIGINT
    assert started[0].returncode == -signal.SIGTERM


#: Starts TWICE as its own parent, so that it gets a signal that was sent to another process.
NESTED = f"""
import sys
import tempfile
from mxpeak.runtime.launch import code_of
sys.exit(code_of([sys.executable, "-c", {TWICE!r}.replace("os.getppid()", sys.argv[1])]))
"""


@pytest.mark.usefixtures("open_files")
def test_the_signal_is_known_through_two_starters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of([sys.executable, "-c", NESTED, str(os.getpid())]) == 128 + signal.SIGINT
    assert (tmp_path / "told").read_text() == f"[{signal.SIGINT:d}]"


def test_a_disk_that_is_full_does_not_keep_a_signal_from_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mxpeak.runtime.launch.os.pwrite", full)
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    assert code_of([sys.executable, "-c", code]) == 128 + signal.SIGINT


def test_a_second_signal_is_not_forwarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal would make mpiexec fail; the exit code is that of the first signal."""
    monkeypatch.chdir(tmp_path)
    assert code_of([sys.executable, "-c", TWICE]) == 128 + signal.SIGINT
    assert (tmp_path / "told").read_text() == f"[{signal.SIGINT:d}]"


#: Copies the output of a command to stdout, which does not block if argv[1] is 1.
COPIES = """
import os, subprocess, sys
from mxpeak.runtime.launch import copied_stdout
os.set_blocking(1, sys.argv[1] == "0")
with copied_stdout() as (streams, errors):
    subprocess.run(sys.argv[2:], check=True, **streams)
sys.exit(len(errors))
"""


def test_a_stdout_that_does_not_block_receives_everything() -> None:
    writes = [sys.executable, "-c", "print('x' * 300_000)"]
    with subprocess.Popen([sys.executable, "-c", COPIES, "1", *writes], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        time.sleep(1.0)  # until the pipe is full
        assert len(process.stdout.read()) == 300_001
    assert process.returncode == 0


def test_a_process_that_keeps_stdout_open_does_not_delay_the_end() -> None:
    begin = time.monotonic()
    copied = subprocess.run(
        [sys.executable, "-c", COPIES, "0", "sh", "-c", "sleep 60 & echo done; exit 0"], stdout=subprocess.PIPE
    )
    assert (copied.returncode, copied.stdout) == (0, b"done\n")
    assert time.monotonic() - begin < 30.0


def test_a_missing_mpi_library_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unlinked(ModuleType):
        rc = SimpleNamespace()

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("cannot load MPI library\nlibmpi.so: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "mpi4py", Unlinked("mpi4py"))
    message = r"finds no MPI library \(cannot load MPI library\); load the MPI module of your site, .*pip install"
    with pytest.raises(ResourceError, match=message):
        launch.mpi_facts()
    monkeypatch.setattr(launch, "_has", lambda package: package == "mpi4py")
    monkeypatch.delitem(sys.modules, "mxpeak.comm.transports.mpi", raising=False)
    monkeypatch.delattr(transports, "mpi", raising=False)
    with pytest.raises(ResourceError, match=message):
        launch._start_mpi(None)
