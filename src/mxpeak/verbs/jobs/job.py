"""A job: its resources, its command, and the quoting of words for a shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from mxpeak.errors import UsageError
from mxpeak.options import seconds

#: Verbs that a job can run instead of a benchmark.
OTHERS = ("scan", "peak")
#: A variable that the shell of a job replaces, such as $SLURM_JOB_ID or ${SCRATCH}.
VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
#: Seconds before the time limit at which the scheduler warns the job, so that mxpeak can write its results.
WARNING_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The resources and the command of a job.

    cpus_per_rank   cores of each rank, or None if the ranks share all cores of a node
    gpus_per_rank   GPUs that each rank uses
    queue           the partition of Slurm, or the queue of the other schedulers
    array           indices of a job array, such as 0-3
    hosts           the hosts to use, or an empty tuple for any hosts
    exclude         the hosts to avoid
    flags           flags of the command that the job runs
    notes           comments about the resources, which the script contains
    """

    benchmark: str
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int | None = None
    gpus_per_node: int | None = None
    gpus_per_rank: int = 1
    time_s: int = 3600
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    array: str | None = None
    hosts: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    launcher: str = ""
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def ranks(self) -> int:
        """Return the number of ranks of the job."""
        return self.nodes * self.ranks_per_node

    @property
    def name(self) -> str:
        """Return the name under which the job is listed."""
        return f"mxpeak-{self.benchmark}"

    def given(self, flag: str) -> bool:
        """Return whether the flags of the command contain this flag."""
        return any(word.split("=")[0] == flag for word in self.flags)

    def command(self, folder: str, name: str, *, logs: bool = False, excluded: str = "slurm") -> str:
        """Return the mxpeak command of the job for a shell.

        Results go to `folder` under `name`, in which the shell replaces variables, unless the flags set another place.
        If `logs`, the result is printed as JSON, because the files of the job do not outlive it. `excluded` is the
        format of the list of hosts that a scan writes.
        """
        words = [*([] if self.benchmark in OTHERS else ["run"]), self.benchmark, *map(shell_word, self.flags)]
        if self.gpus_per_node and not self.given("--device"):
            words += ["--device", "cuda"]
        if logs:
            return " ".join([*words, *([] if self.given("--json") else ["--json", "-"])])
        if self.benchmark not in OTHERS:
            return " ".join(
                [*words, *([] if self.given("--out") else ["--out", f'"{folder}/{name}-{self.benchmark}"'])]
            )
        if not self.given("--json"):
            words += ["--json", f'"{folder}/{name}-{self.benchmark}.json"']
        if self.benchmark == "scan" and not self.given("--write-exclude"):
            words += ["--write-exclude", f'"{folder}/{name}-exclude.txt"']
            if excluded != "slurm" and not self.given("--exclude-format"):
                words += ["--exclude-format", excluded]
        return " ".join(words)


def shell_word(word: str) -> str:
    """Quote a word for a shell, but keep variables, so that the shell of the job replaces them.

    >>> print(shell_word("N=1 2"), shell_word("runs/$SLURM_JOB_ID/a b"), shell_word("cost $5"))
    'N=1 2' "runs/$SLURM_JOB_ID/a b" 'cost $5'
    """
    if not VARIABLE.search(word):
        return shlex.quote(word)
    texts, variables = VARIABLE.split(word), [*VARIABLE.findall(word), ""]
    escaped = [re.sub(r'(["\\`$])', r"\\\1", text) for text in texts]
    return '"' + "".join(text + variable for text, variable in zip(escaped, variables)) + '"'


def time_limit(text: str) -> int:
    """Parse a time limit such as 02:00:00, 1-12:00:00, 30m or 2h, and return it in seconds."""
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", text)
    if match is not None:
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        limit = ((24 * days + hours) * 60 + minutes) * 60 + rest
    elif text[-1:] in ("s", "m", "h"):
        limit = round(seconds(text))
    else:
        raise UsageError(f"{text!r} is not a time limit; use HH:MM:SS, D-HH:MM:SS, 30m or 2h")
    if limit < 2 * WARNING_S:
        raise UsageError(f"{text!r} is {limit} s, but mxpeak needs {WARNING_S} s to end; use at least {2 * WARNING_S}s")
    return limit


def clock(limit_s: int) -> str:
    """Return a time limit in the form HH:MM:SS."""
    return f"{limit_s // 3600:02d}:{limit_s // 60 % 60:02d}:{limit_s % 60:02d}"


def scheduler_name(text: str) -> str:
    """Check a name for a directive of a scheduler, which cannot contain spaces or quotes, and return it."""
    if not re.fullmatch(r"[\w.,:/@%+=&|*!()\[\]{}<>-]+", text):
        raise UsageError(f"{text!r} contains a space or a quote; use a name without them")
    return text
