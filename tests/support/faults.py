"""Run benchmarks with an accident, and return the remains of the runs."""

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

#: Seconds after which a run that should have ended hangs; they decide nothing else.
HANGS_S = 300.0


@dataclass
class Job:
    """A run in a folder of its own, by which its processes are told from all others."""

    folder: Path
    process: subprocess.Popen[str]

    def processes(self) -> list[int]:
        """All that works in its folder."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and self._here(entry)]

    def _here(self, entry: Path) -> bool:
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            return (entry / "cwd").resolve() == self.folder.resolve() and state != "Z"
        except OSError:
            return False

    def rank(self, number: int) -> int:
        """The process of a rank."""
        for pid in self.processes():
            try:
                environ = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PMI_RANK={number}".encode() in environ or f"RANK={number}".encode() in environ:
                return pid
        raise LookupError(f"there is no rank {number}")

    def wait_for(self, moment: Callable[[Job], object], what: str) -> None:
        """Until the moment has come."""
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
        """The exit code, and the seconds until nothing was left."""
        begin = time.monotonic()
        while self.process.poll() is None or self.processes():
            left = self.processes()
            assert time.monotonic() - begin < HANGS_S, f"still there: {left}: {self.stderr()}"
            time.sleep(0.05)
        return self.process.returncode, time.monotonic() - begin

    def stderr(self) -> str:
        """What it has printed on stderr."""
        return (self.folder / "stderr").read_text(errors="replace")

    def events(self) -> str:
        """What --events has written so far."""
        return (self.folder / "events").read_text()


def hear_all() -> None:
    """Take no signal as ignored: a shell that starts the tests in the background has SIGINT and SIGQUIT ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def job(folder: Path, command: list[str], **environ: str) -> Iterator[Job]:
    """A command that runs in this folder; nothing of it is left when the block is."""
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
    """The command line of a run that takes longer than any accident needs to come."""
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
    """mxpeak starts its two ranks."""
    return [*PYTHON, *run(benchmark, *flags), "--ranks", "2"]


def by_mpiexec(benchmark: str, *flags: str) -> list[str]:
    """mpiexec starts them."""
    return [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", *PYTHON, *run(benchmark, *flags)]


def by_torchrun(benchmark: str, *flags: str) -> list[str]:
    """torchrun starts them."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*torchrun, "-m", "mxpeak", *run(benchmark, *flags)]


def by_python(benchmark: str, *flags: str) -> list[str]:
    """A Python program that calls the library starts them; ended before it has come to its work."""
    assert benchmark == "hpl"
    return [sys.executable, "-c", "import mxpeak as mx; mx.run.hpl(n=14000, grid='1x2', ranks=2, warmup='none')"]


def with_mounts(mounts: dict[str, str], command: list[str]) -> list[str]:
    """The command where file systems in memory lie on some folders, with these options; nobody else sees them.

    Where one of them that may be written to holds this Python, that part of it stays to be seen: CI has its environment
    in /dev/shm.
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
    """Whether this user may have mounts of his own."""
    try:
        return subprocess.run(with_mounts({"/mnt": "size=4k"}, ["true"]), capture_output=True).returncode == 0
    except OSError:
        return False


#: Two hosts as two network namespaces with host names of their own, and two links between them: by `control` mpiexec
#: starts ranks and ends them, `data` is for their messages.  The second host lasts as long as the command.
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
#: Messages by TCP over the link for data, and nothing else.
BY_DATA = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "data"}


def by_two_hosts(benchmark: str, *flags: str) -> list[str]:
    """mpiexec starts a rank on each of two hosts."""
    mpiexec, *rest = by_mpiexec(benchmark, *flags)
    return on_two_hosts([mpiexec, *HYDRA, *rest])


def on_two_hosts(command: list[str]) -> list[str]:
    """The command on the first of two hosts that nobody else sees."""
    return ["unshare", "--net", "--uts", "--mount", "sh", "-c", TWO_HOSTS, "sh", *command]


def may_have_hosts(folder: Path) -> bool:
    """Whether this user may have hosts of his own."""
    try:
        return subprocess.run(on_two_hosts(["true"]), cwd=folder, capture_output=True).returncode == 0
    except OSError:
        return False


def stall(pid: int) -> None:
    """Let nothing through the link for data any more, at the end where this process is."""
    subprocess.run(["nsenter", "--target", str(pid), "--net", "ip", "link", "set", "data", "down"], check=True)


# --- moments


def beginning(job: Job) -> object:
    """Its ranks are there."""
    return job.rank(1)


def set_up(job: Job) -> object:
    """A case has begun."""
    return "case started" in job.events()


def at_work(job: Job) -> object:
    """A step has been done."""
    return '"step"' in job.events()
