"""Create mutated input from valid texts, with a reader for each kind that must accept or refuse it."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak import __version__
from mxpeak.bench import run_record
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.matrix_market import read_matrix
from mxpeak.cli.baseline import SAME, forecasts
from mxpeak.cli.config_file import read_toml
from mxpeak.cli.main import parsed
from mxpeak.cli.request import requests
from mxpeak.cli.resume import wanted
from mxpeak.cli.session import Session
from mxpeak.errors import UsageError
from mxpeak.foreign import UNSAFE
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.perf.tuned import InvalidWinnersError, read_winners
from mxpeak.records import read_json
from mxpeak.runtime import checkpoint
from mxpeak.runtime.checkpoint import CheckpointPart, read_part, write_part

#: Texts to insert: numbers at the ends of ranges, words that parsers recognize, and bytes that no parser expects.
STRANGE = [
    "", " ", "0", "-1", "1e999", "-0.0", "nan", "inf", "9" * 5000, "1" * 400 + ".5", "0x10", "1_000", "²", "٣", "\0",
    "\x7f", "\ufeff", "\u2028", "é", "💥", "%", "#", "!", "'", '"', '"""', "[", "]", "{", "}", "[[", "=", ",", ":",
    "\\", "\\u0000", "\r", "\t", "\n\n", "true", "null", "None", "[" * 3000, "{" * 300, "../../x", "/dev/zero/x",
    "$(id)", "2x2", "1e400", "100%", "64GiB", "1" * 30, "-9223372036854775809", "1D3", "--help", "-", "auto", "NaN",
    "Infinity", "1e-400",
]  # fmt: skip


Door = Callable[[str, Path], object]


def mutated(text: str, rng: random.Random) -> str:
    """Return the text with pieces removed, doubled, swapped, replaced by odd ones, or truncated."""
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        text = _accident(text, rng)
    return text


#: Values that replace a JSON value, in addition to other values of the same file.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 1e-320, 1e300, -1e300, 1e17, 2**53 + 1, 2**63, 2**64 - 1, 2**70, 0.5, -0.0, "", " ",
    "x", "-1", "=1+1", "\x1b[2J", "\n", "a\tb", "\u202e", "\ud800", "nan", "é" * 50, "w" * 5000, [], {}, [[]], [None],
    [0], ["x"], [1, 2], [1, "x"], {"": None}, {"x": 1}, {"value": []}, [[[[[[0]]]]]], [1e308, 1e308], [0, 0], [-1, -2],
    ["../../x"], {"\x1b]0;x\x07": "\x1b[31m"}, [{"time_s": None}], {"rate_flops": "x"}, "2x2", [[1, 2], [2]], 1e-300,
]  # fmt: skip


#: Valid numbers of a result, at the limits of plots and sums.
NUMBERS: list[float] = [
    0, 1, 0.0, 1e-323, 1e-300, 1e-30, 1e30, 1e150, 1e299, 1e308, 1.7e308, 2**31, 2**53, 2**63, 2**64 - 1, 3, 1024
]  # fmt: skip


def mutated_json(text: str, rng: random.Random) -> str:
    """Return JSON with values replaced, removed, swapped or doubled; about every third is mutated as text."""
    if rng.randrange(3) == 0:
        return mutated(text, rng)
    body = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 10])):
        kind = rng.randrange(8)
        inside, key = _place(body, rng)
        if kind > 5:  # replace a number by another one, also by a very large or small one
            for _ in range(50):
                if isinstance(inside[key], int | float):
                    inside[key] = rng.choice(NUMBERS)
                    break
                inside, key = _place(body, rng)
        elif kind < 3:
            inside[key] = copy.deepcopy(rng.choice(ODD))
        elif kind == 3:
            del inside[key]
        elif kind == 4:
            other, name = _place(body, rng)
            inside[key] = copy.deepcopy(other[name])
        elif isinstance(inside, dict):
            inside[rng.choice(["x", "rate_bytes", "history", "", key + "_"])] = copy.deepcopy(inside[key])
        else:
            inside += copy.deepcopy(inside[key : key + 1]) * rng.choice([1, 2, 500])
        if not body:
            break
    return json.dumps(body)


def _place(body: Any, rng: random.Random) -> tuple[Any, Any]:
    """Select a random value of a document; return its container and its key or index."""
    inside = body
    while True:
        key = rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
        below = inside[key]
        if not below or not isinstance(below, dict | list) or rng.random() < 0.15:
            return inside, key
        inside = below


def _accident(text: str, rng: random.Random) -> str:
    i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    words = [match.span() for match in re.finditer(r"[^\s=,:\[\]{}]+", text)]
    kind = rng.randrange(9)
    if kind == 8:  # a byte that is not UTF-8, as a surrogate
        return text[:i] + chr(rng.randrange(0xDC80, 0xDD00)) + text[i:]
    if kind == 0:
        return text[:i]
    if kind == 1:
        return text[:i] + text[min(j, i + 20) :]
    if kind == 2:
        return text[:i] + rng.choice(STRANGE) + text[i:]
    if kind == 3:
        return text[:i] + text[i : i + 40] + text[i:]
    if kind == 4 and i < len(text):
        return text[:i] + chr(ord(text[i]) ^ (1 << rng.randrange(7))) + text[i + 1 :]
    if words:
        a, b = rng.choice(words)
        other = rng.choice(words)
        return text[:a] + (rng.choice(STRANGE) if kind < 7 else text[slice(*other)]) + text[b:]
    return text + rng.choice(STRANGE)


# --- the readers: each reads a text, and may raise only a UsageError ----------------------------------------------


def written(text: str, path: Path, encoding: str = "utf-8") -> Path:
    """Write a file with this text, in which surrogates represent bytes, and return its path."""
    path.write_bytes(text.encode(encoding, "surrogateescape" if encoding == "utf-8" else "replace"))
    return path


def matrix_market(text: str, folder: Path) -> None:
    read_matrix(written(text, folder / "A.mtx", "latin-1"))


def compressed(text: str, folder: Path) -> None:
    path = folder / "A.mtx.gz"
    whole = gzip.compress(text.encode(errors="replace"), mtime=0)
    path.write_bytes(whole[: len(whole) - (len(text) % 3 == 0) * 5])  # a third of the archives are truncated
    read_matrix(path)


def toml(text: str, folder: Path) -> None:
    path = written(text, folder / "run.toml")
    read_toml(str(path))
    requests(parsed(["run", "hpl", "--config", str(path), "--tuned", "no"]), {})


def config_of_result(text: str, folder: Path) -> None:
    path = written(text, folder / "result.json")
    benchmark = next((name for name in BENCHMARKS_RECORDED if f'"benchmark": "{name}"' in text), "hpl")
    (one,) = requests(parsed(["run", benchmark, "--config", str(path), "--tuned", "no"]), {})
    assert paths_of(one) == [], text


def dat(benchmark: str) -> Door:
    """Return the reader of a benchmark's input file."""

    def read(text: str, folder: Path) -> None:
        requests(parsed(["run", benchmark, "--dat", str(written(text, folder / "in.dat")), "--tuned", "no"]), {})

    return read


def machine(text: str, folder: Path) -> None:
    find_machine(str(written(text, folder / "machine.toml")))


def simulated(text: str, folder: Path) -> None:
    path = written(text, folder / "machine.toml")
    answered(["simulate", "hpl", "--machine", str(path), "-N", "4096", "--nb", "512", "--grid", "2x2"])


#: The second result of recorded.json, as a case to run again.
MXP_CASE = namedtuple("MXP_CASE", SAME)(400, "fp32", "sqrt-n", "gmres", "none", "none")


def baseline(text: str, folder: Path) -> None:
    """Read --baseline FILE, and compare a run with it."""
    found = forecasts(str(written(text, folder / "result.json")), "hpl-mxp", [MXP_CASE], 2)
    for forecast in found.values():
        forecast.section()
        for done in (0.0, 1.0, 1e7, 1e30):
            forecast.remaining_s(done)
            forecast.compared(1.0, done)


def answered(words: list[str]) -> None:
    """Run a command as `main` does; every exception except UsageError becomes a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        args = parsed(words)
        code = args.action(args, words, Session())
    if unsafe := UNSAFE.findall(out.getvalue() + err.getvalue()):
        raise RuntimeError(f"characters are printed that act on terminals: {unsafe[:3]}")
    if code not in (0, 2, 4):
        raise RuntimeError(f"exit code {code}: {err.getvalue()[-3000:]}")


def report(form: str) -> Door:
    """Return a reader that runs `mxpeak report` in one format."""

    def read(text: str, folder: Path) -> None:
        answered(["report", str(written(text, folder / "result.json")), "--format", form, "--out", "-"])

    return read


def compare(text: str, folder: Path) -> None:
    path, whole = written(text, folder / "result.json"), folder / "whole.json"
    if not whole.exists():
        whole.write_text(_result_text(), encoding="utf-8")
    pair = [str(path), str(whole)] if len(text) % 2 else [str(whole), str(path)]
    answered(["compare", *pair, *(["--json", "-"] if len(text) % 3 == 0 else [])])


def history(text: str, folder: Path) -> None:
    """Read one mutated file among valid ones; the command always lists the valid ones."""
    for name, content in (("whole", _one_result("hpl")), ("odd", text)):
        path = Path("mxpeak-out", name, "result.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        written(content, path)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        args = parsed(["history", "--last", "1000"])
        code = args.action(args, [], Session())
    if code or sum(line.endswith(" whole") for line in out.getvalue().splitlines()) != 1:
        raise RuntimeError(f"code {code}; {out.getvalue()}; {err.getvalue()[-3000:]}")
    if err.getvalue():
        raise UsageError(err.getvalue())


def keep(text: str, folder: Path) -> None:
    answered(["baseline", "set", str(written(text, folder / "result.json"))])


def paths_of(request: Any) -> list[str]:
    """Return the user's paths that a request sets, although only a recorded run can set them."""
    values = {**vars(request.output), **vars(request.config)}
    paths = ("out", "json", "events", "prometheus", "trace", "baseline", "checkpoint")
    return [name for name in paths if values.get(name)]


def part(text: str, folder: Path) -> None:
    """Read a checkpoint part with this text, and one with this text as its header and a matching digest."""
    (folder / "a").mkdir(exist_ok=True)
    body = text.encode("utf-8", "surrogateescape") + b"\n"
    begin = f"{checkpoint.SCHEMA} {checkpoint.FIRST_LINE + len(body):010} ".encode()
    head = begin + checkpoint._head_digest(begin, body) + b"\n" + body
    digest = checkpoint.Digest(head)
    digest.add(b"x" * 96)
    for content in (text.encode("utf-8", "surrogateescape"), head + b"x" * 96 + digest.text()):
        (folder / "a" / "0-0").write_bytes(content)
        try:
            read_part(folder / "a", 0, 0, whole=True)
        except (ValueError, OSError) as error:
            message = str(error)
            continue
        return
    raise UsageError(message)


def run_json(text: str, folder: Path) -> None:
    """Read a run.json with this text, and one with a matching digest next to an intact part."""
    record = _record()
    about = {"generation": "g", "number": 2, "steps": 1, "m": 4, "n": 5, "nb": 2, "P": 1, "Q": 1, "p": 0, "q": 0}
    notes = {"blocks": [1.0, 1.0], "singular": [0.0]}
    values: Any = {**about, "dtype": "float64", "elapsed_s": 1.0, "unix": 1.0, "notes": notes}
    write_part(folder / "a", CheckpointPart(about=record.about(), **values), np.zeros((4, 5)))
    texts = [text]
    with suppress(ValueError):
        said = read_json(text)
        known = run_record._record(said, {"hpl": HplConfig})
        texts.append(json.dumps({**said, "digest": run_record._digest(known.about())}))
    for one in texts:
        written(one, folder / "run.json")
        try:
            request = wanted(parsed(["resume", str(folder)]))
        except UsageError as error:
            refused = error
            continue
        config: Any = request.config
        config = replace(config, checkpoint=None)
        assert paths_of(replace(request, config=config)) == [], text
        assert (config.n, config.nb, config.seed) == ((4,), (2,), 7), text
        return
    raise refused


def book(text: str, folder: Path) -> None:
    read_winners(text, {})


def command_line(text: str, folder: Path) -> None:
    # --help and --version exit
    words = text.split()[:30]
    try:
        with redirect_stdout(io.StringIO()):
            args = parsed(words)
        if getattr(args, "benchmark", None) and args.verb == "run":
            requests(args, {})
    except SystemExit as answer:
        if answer.code:
            raise RuntimeError(f"it left with {answer.code}") from None


GOLDEN = Path(__file__).parents[1] / "golden"
MACHINES = Path(__file__).parents[2] / "src" / "mxpeak" / "perf" / "machines.toml"


#: The benchmarks of recorded.json in the order of the file.
BENCHMARKS_RECORDED = ("hpl", "hpl-mxp", "hpg-mxp", "hpcg", "norms")


@cache
def _result_text() -> str:
    """Return recorded results of all benchmarks, with long lists cut to six items."""
    return (GOLDEN / "recorded.json").read_text(encoding="utf-8")


@cache
def _one_result(benchmark: str) -> str:
    """Return the result of one benchmark alone."""
    body = json.loads(_result_text())
    return json.dumps({**body, "results": [one for one in body["results"] if one["benchmark"] == benchmark]})


def _golden(name: str) -> Callable[[], str]:
    return cache(lambda: (GOLDEN / name).read_text(encoding="utf-8"))


def _part_text() -> str:
    about = {"generation": "g", "number": 1, "steps": 1, "m": 3, "n": 4, "nb": 2, "P": 1, "Q": 1, "p": 0, "q": 0}
    about |= {"dtype": "float64", "elapsed_s": 1.0, "unix": 1.0, "notes": {"blocks": "00" * 8}}
    return json.dumps({"about": _record().about(), **about})


def _record() -> run_record.RunRecord:
    settings = {"n": "4", "nb": "2", "grid": "1x1", "seed": "7", "watchdog": "off"}
    return run_record.RunRecord("this", "hpl", __version__, settings)


def _run_text() -> str:
    about = _record().about()
    more = {**about["settings"], "prometheus": "p", "trace": "t", "config": "c"}
    return json.dumps({"schema": checkpoint.SCHEMA, **about, "settings": more, "digest": run_record._digest(about)})


#: The valid text and the reader of each kind of input.
DOORS: Mapping[str, tuple[Callable[[], str], Door]] = {
    "HPL.dat": (_golden("lists.dat"), dat("hpl")),
    "HPL-MxP.dat": (_golden("mxp.dat"), dat("hpl-mxp")),
    "hpcg.dat": (lambda: "HPCG benchmark input file\nSandia National Laboratories\n104 104 104\n60\n", dat("hpcg")),
    "hpgmp.dat": (lambda: "HPGMP benchmark input file\nORNL\n104 104 104\n-1\n1 1 1\n", dat("hpg-mxp")),
    "Matrix Market": (
        lambda: (
            "%%MatrixMarket matrix coordinate real general\n% a comment\n\n3 3 5\n"
            "1 1 2.5\n2 2 -1e3 \n3 3 1\n1 3 4\n\n3 1 .5\n"
        ),
        matrix_market,
    ),
    "Matrix Market, compressed": (
        lambda: "%%MatrixMarket matrix coordinate integer symmetric\n%\n2 2 3\n1 1 2\n2 1 1\n2 2 2\n",
        compressed,
    ),
    "TOML": (
        lambda: (
            'n = [1000, 2000]\nnb = 192\nmem = "80%"\n'
            'grid = "1x2"\nrepeat = 2\nquick = false\nbcast = ["long", "1ring"]\n'
            '[hpl]\nsplit = 0.5\nthreshold = 16.0\n[norms]\nkind = ["one", "fro"]\n'
        ),
        toml,
    ),
    "machine": (lambda: MACHINES.read_text(encoding="utf-8").split("[frontier]")[0], machine),
    "machine, simulated": (
        lambda: "[frontier]" + MACHINES.read_text(encoding="utf-8").split("[frontier]")[1].split("[crusher]")[0],
        simulated,
    ),
    "--baseline": (_result_text, baseline),
    "--config of a result": (_result_text, config_of_result),
    "report, html": (_result_text, report("html")),
    "report, markdown": (_result_text, report("markdown")),
    "report, csv": (_result_text, report("csv")),
    "compare": (_result_text, compare),
    "history": (_result_text, history),
    "baseline set": (_result_text, keep),
    "log of HPL": (_golden("checked.txt"), report("html")),
    "log of HPCG": (_golden("hpcg.txt"), report("csv")),
    "log of HPG-MxP": (_golden("hpgmp.txt"), report("markdown")),
    "part of a checkpoint": (_part_text, part),
    "run.json of checkpoints": (_run_text, run_json),
    "tuned settings": (
        lambda: json.dumps(
            {
                "schema": "mxpeak.tuned/1",
                "machine": {"host": "a"},
                "fingerprint": {},
                "winners": [
                    {"benchmark": "hpl", "mode": "official", "device": "cpu", "ranks": 1, "threads": 2}
                    | {"any_layout": False, "size": {"n": 2000}, "settings": {"nb": "128"}}
                ],
            }
        ),
        book,
    ),
    "command line": (
        lambda: (
            "run hpl -N 1000,2000 --nb 64 --grid 1x2 --bcast long --depth 1 --threads 2 --mem 50% --watchdog 10,60 "
            "--checkpoint kept --every 5m --split 0.5 --json r.json --out here --device cpu --min-gflops 3"
        ),
        command_line,
    ),
}


def at_door(name: str, text: str, folder: Path) -> str | None:
    """Read a text; return None if it is accepted, or the message if it is refused; other errors propagate."""
    _, door = DOORS[name]
    try:
        door(text, folder)
    except (UsageError, InvalidWinnersError) as error:
        message = str(error)
        assert message.strip()
        assert len(message) < 20_000, message[:300]
        return message
    return None


def try_one(name: str, seed: int, folder: Path) -> str | None:
    """Read the mutated text of a seed, as `at_door` does."""
    return at_door(name, crash(name, seed), folder)


def crash(name: str, seed: int) -> str:
    """Return the mutated text of a seed, which reproduces a failure."""
    whole, rng = DOORS[name][0], random.Random(f"{name} {seed}")
    if whole is not _result_text:
        return mutated(whole(), rng)
    return mutated_json(_result_text() if seed % 10 == 0 else _one_result(BENCHMARKS_RECORDED[seed % 5]), rng)
