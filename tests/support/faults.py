"""Run benchmarks with injected faults, and return the remains of the runs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ranks import PYTHON

#: Seconds after which a run that should have ended counts as hanging.
HANGS_S = 300.0


@dataclass
class Job:
    """A run with its own working folder, which identifies its processes."""

    folder: Path
    process: subprocess.Popen[str]

    def processes(self) -> list[int]:
        """Return the processes that work in its folder."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and self._here(entry)]

    def _here(self, entry: Path) -> bool:
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            return (entry / "cwd").resolve() == self.folder.resolve() and state != "Z"
        except OSError:
            return False

    def rank(self, number: int) -> int:
        """Return the process of a rank."""
        for pid in self.processes():
            try:
                environ = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PMI_RANK={number}".encode() in environ or f"RANK={number}".encode() in environ:
                return pid
        raise LookupError(f"there is no rank {number}")

    def wait_for(self, moment: Callable[[Job], object], what: str) -> None:
        """Wait until the moment has come."""
        deadline = time.monotonic() + HANGS_S
        while not self._come(moment):
            ended = self.process.poll()
            assert ended is None, f"it ended with {ended} before {what}: {self.stderr()}"
            assert time.monotonic() < deadline, f"{what} never came: {self.stderr()}"
            time.sleep(0.05)

    def _come(self, moment: Callable[[Job], object]) -> bool:
        try:
            return bool(moment(self))
        except (LookupError, OSError):
            return False

    def ended(self) -> tuple[int, float]:
        """Return the exit code and the seconds until all processes have ended."""
        begin = time.monotonic()
        while self.process.poll() is None or self.processes():
            left = self.processes()
            assert time.monotonic() - begin < HANGS_S, f"still there: {left}: {self.stderr()}"
            time.sleep(0.05)
        return self.process.returncode, time.monotonic() - begin

    def stderr(self) -> str:
        """Return its output on stderr."""
        return (self.folder / "stderr").read_text(errors="replace")

    def events(self) -> str:
        """Return the present content of the --events file."""
        return (self.folder / "events").read_text()


def hear_all() -> None:
    """Restore the default signal handlers, because a shell's background processes ignore SIGINT and SIGQUIT."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def job(folder: Path, command: list[str], **environ: str) -> Iterator[Job]:
    """Run a command in this folder, and kill all its processes at the end of the block."""
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environ},
            text=True,
            preexec_fn=hear_all,
        )
        job = Job(folder, process)
        try:
            yield job
        finally:
            for pid in job.processes():
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()


def run(benchmark: str, *flags: str) -> list[str]:
    """Return the command line of a run that is long enough for every fault."""
    sizes = {
        "hpl": ["-N", "14000", "--grid", "1x2"],
        "hpl-mxp": ["-N", "14000", "--grid", "1x2"],
        "hpg-mxp": ["--nx", "32", "--rt", "60"],
        "hpcg": ["--nx", "32", "--rt", "60"],
        "norms": ["-N", "8000", "--repeat", "3000"],
    }
    common = ["--warmup", "none", "--events", "events", "--out", "results"]
    return ["run", benchmark, *sizes[benchmark], *common, *flags]


def by_itself(benchmark: str, *flags: str) -> list[str]:
    """Return a command in which mxpeak starts its two ranks."""
    return [*PYTHON, *run(benchmark, *flags), "--ranks", "2"]


def by_mpiexec(benchmark: str, *flags: str) -> list[str]:
    """Return a command in which mpiexec starts the ranks."""
    return [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", *PYTHON, *run(benchmark, *flags)]


def by_torchrun(benchmark: str, *flags: str) -> list[str]:
    """Return a command in which torchrun starts the ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*torchrun, "-m", "mxpeak", *run(benchmark, *flags)]


def by_python(benchmark: str, *flags: str) -> list[str]:
    """Return a command in which a Python program starts the ranks through the library; killed before the LU."""
    assert benchmark == "hpl"
    return [sys.executable, "-c", "import mxpeak as mx; mx.run.hpl(n=14000, grid='1x2', ranks=2, warmup='none')"]


def with_mounts(mounts: dict[str, str], command: list[str]) -> list[str]:
    """Return a command in a mount namespace with tmpfs file systems, with these options, mounted on some folders.

    If such a folder contains this Python, its part of the folder stays visible, because CI has its environment in
    /dev/shm.
    """
    mount = []
    for folder, options in mounts.items():
        over = f"mount -t tmpfs -o {options} tmpfs {shlex.quote(folder)}"
        if Path(sys.prefix).is_relative_to(folder):
            part = shlex.quote(str(Path(folder, Path(sys.prefix).relative_to(folder).parts[0])))
            over = f"mount --bind {part} /mnt && {over} && mkdir {part} && mount --bind /mnt {part}"
        mount.append(over)
    return ["unshare", "--mount", "sh", "-c", " && ".join([*mount, f"exec {shlex.join(command)}"])]


def may_mount() -> bool:
    """Return whether this user may create mount namespaces."""
    try:
        return subprocess.run(with_mounts({"/mnt": "size=4k"}, ["true"]), capture_output=True).returncode == 0
    except OSError:
        return False


#: Two hosts as two network namespaces with their own host names and two links between them. mpiexec starts and ends
#: ranks through `control`; their messages use `data`. The second host exists as long as the command runs.
TWO_HOSTS = r"""
set -e
rm -f there
mount -t sysfs sysfs /sys  # where UCX looks for devices: as many as this host has
unshare --net --uts --mount sh -c "mount -t sysfs sysfs /sys && touch there && exec sleep 1000" & other=$!
trap 'kill $other' EXIT
until [ -e there ]; do kill -0 $other; sleep 0.05; done
on_other="nsenter --target $other --net --uts --mount"
hostname here; $on_other hostname there
for link in control data; do
    ip link add $link type veth peer name $link netns $other
    ip link set $link up; $on_other ip link set $link up
done
ip link set lo up; $on_other ip link set lo up
ip address add 10.77.0.1/24 dev control; $on_other ip address add 10.77.0.2/24 dev control
ip address add 10.78.0.1/24 dev data; $on_other ip address add 10.78.0.2/24 dev data
# What mpiexec calls in place of ssh: options, the host, and the words of a command.
cat > launch <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1; shift
[ "\$host" = 10.77.0.1 ] && exec sh -c "\$*" || exec $on_other sh -c "\$*"
END
chmod +x launch
set +e
"$@"
"""
HYDRA = ["-launcher", "ssh", "-launcher-exec", "./launch", "-localhost", "10.77.0.1", "-hosts", "10.77.0.1,10.77.0.2"]
#: Send messages by TCP through the link `data` only.
BY_DATA = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "data"}


def by_two_hosts(benchmark: str, *flags: str) -> list[str]:
    """Return a command in which mpiexec starts a rank on each of two hosts."""
    mpiexec, *rest = by_mpiexec(benchmark, *flags)
    return on_two_hosts([mpiexec, *HYDRA, *rest])


def on_two_hosts(command: list[str]) -> list[str]:
    """Return a command that runs on the first of two private hosts."""
    return ["unshare", "--net", "--uts", "--mount", "sh", "-c", TWO_HOSTS, "sh", *command]


def may_have_hosts(folder: Path) -> bool:
    """Return whether this user may create such hosts."""
    try:
        return subprocess.run(on_two_hosts(["true"]), cwd=folder, capture_output=True).returncode == 0
    except OSError:
        return False


def stall(pid: int) -> None:
    """Take down the link `data` on the host of this process."""
    subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", "link", "set", "data", "down"], check=True)


# --- moments


def beginning(job: Job) -> object:
    """Return whether its ranks have started."""
    return job.rank(1)


def set_up(job: Job) -> object:
    """Return whether a case has started."""
    return "case started" in job.events()


def at_work(job: Job) -> object:
    """Return whether a step is complete."""
    return '"step"' in job.events()
