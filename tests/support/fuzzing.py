"""Bad input by the thousand: texts that were whole once, and a door for each kind that must refuse or take them."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.bench import keeping
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl.input import read_dat as read_hpl
from mxpeak.bench.hpl_mxp.input import read_dat as read_mxp
from mxpeak.bench.matrix_market import read_matrix
from mxpeak.cli.baseline import forecasts
from mxpeak.cli.config_file import read_toml
from mxpeak.cli.main import parsed
from mxpeak.cli.request import requests
from mxpeak.cli.resume import wanted
from mxpeak.configs.lu import LuCase
from mxpeak.errors import UsageError
from mxpeak.perf.machines import find_machine
from mxpeak.perf.tuned import BadBookError, read_book
from mxpeak.records import read_json
from mxpeak.runtime import checkpoint
from mxpeak.runtime.checkpoint import Part, read_part, write_part

#: What is put in, besides what stood there: numbers at ends of ranges, words that parsers know, bytes that none does.
STRANGE = [
    "", " ", "0", "-1", "1e999", "-0.0", "nan", "inf", "9" * 5000, "1" * 400 + ".5", "0x10", "1_000", "²", "٣", "\0",
    "\x7f", "\ufeff", "\u2028", "é", "💥", "%", "#", "!", "'", '"', '"""', "[", "]", "{", "}", "[[", "=", ",", ":",
    "\\", "\\u0000", "\r", "\t", "\n\n", "true", "null", "None", "[" * 3000, "{" * 300, "../../x", "/dev/zero/x",
    "$(id)", "2x2", "1e400", "100%", "64GiB", "1" * 30, "-9223372036854775809", "1D3", "--help", "-", "auto", "NaN",
    "Infinity", "1e-400",
]  # fmt: skip


def mutated(text: str, rng: random.Random) -> str:
    """The text with some accidents: pieces lost, doubled, swapped, replaced by strange ones, or cut off."""
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        text = _accident(text, rng)
    return text


def _accident(text: str, rng: random.Random) -> str:
    i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    words = [match.span() for match in re.finditer(r"[^\s=,:\[\]{}]+", text)]
    kind = rng.randrange(8)
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


# --- the doors: each takes a text, and nothing but a UsageError may come out --------------------------------------


def matrix_market(text: str, folder: Path) -> None:
    path = folder / "A.mtx"
    path.write_text(text, encoding="latin-1", errors="replace")
    read_matrix(path)


def compressed(text: str, folder: Path) -> None:
    path = folder / "A.mtx.gz"
    whole = gzip.compress(text.encode(errors="replace"), mtime=0)
    path.write_bytes(whole[: len(whole) - (len(text) % 3 == 0) * 5])  # a third of the archives are cut off
    read_matrix(path)


def toml(text: str, folder: Path) -> None:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    read_toml(str(path))
    requests(parsed(["run", "hpl", "--config", str(path), "--tuned", "no"]), {})


def machine(text: str, folder: Path) -> None:
    path = folder / "machine.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    find_machine(str(path))


def result(text: str, folder: Path) -> None:
    path = folder / "result.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    forecasts(str(path), "hpl", [LuCase(n=1000, nb=64, P=1, Q=1)], 1)


def config(text: str, folder: Path) -> None:
    path = folder / "repeat.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    (one,) = requests(parsed(["run", "hpl", "--config", str(path), "--tuned", "no"]), {})
    assert paths_of(one) == [], text


def paths_of(request: Any) -> list[str]:
    """The paths of the user that a request sets, although only a recorded run could have set them."""
    values = {**vars(request.output), **vars(request.config)}
    return [name for name in ("out", "json", "events", "prometheus", "trace", "baseline", "checkpoint") if values[name]]


def part(text: str, folder: Path) -> None:
    """A part of this text, and one whose head has this text and the digest that fits."""
    (folder / "a").mkdir(exist_ok=True)
    body = text.encode(errors="replace") + b"\n"
    begin = f"{checkpoint.SCHEMA} {checkpoint.FIRST_LINE + len(body):010} ".encode()
    head = begin + checkpoint._head_digest(begin, body) + b"\n" + body
    digest = checkpoint.Digest(head)
    digest.add(b"x" * 96)
    for content in (text.encode(errors="replace"), head + b"x" * 96 + digest.text()):
        (folder / "a" / "0-0").write_bytes(content)
        try:
            read_part(folder / "a", 0, 0, whole=True)
        except (ValueError, OSError) as error:
            said = str(error)
            continue
        return
    raise UsageError(said)


def run_json(text: str, folder: Path) -> None:
    """A run.json of this text, and one with the digest that fits, beside an intact part."""
    record = _record()
    about = {"generation": "g", "number": 2, "steps": 1, "m": 4, "n": 5, "nb": 2, "P": 1, "Q": 1, "p": 0, "q": 0}
    notes = {"blocks": [1.0, 1.0], "singular": [0.0]}
    values: Any = {**about, "dtype": "float64", "elapsed_s": 1.0, "unix": 1.0, "notes": notes}
    write_part(folder / "a", Part(about=record.about(), **values), np.zeros((4, 5)))
    texts = [text]
    with suppress(ValueError):
        said = read_json(text)
        known = keeping._record(said, {"hpl": HplConfig})
        texts.append(json.dumps({**said, "digest": keeping._digest(known.about())}))
    for one in texts:
        (folder / "run.json").write_text(one, encoding="utf-8", errors="replace")
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
    read_book(text, {})


def command_line(text: str, folder: Path) -> None:
    # --help and --version answer by leaving
    words = text.split()[:30]
    try:
        args = parsed(words)
        if getattr(args, "benchmark", None) and args.verb == "run":
            requests(args, {})
    except SystemExit as answered:
        if answered.code:
            raise RuntimeError(f"it left with {answered.code}") from None


GOLDEN = Path(__file__).parents[1] / "golden"
MACHINES = Path(__file__).parents[2] / "src" / "mxpeak" / "perf" / "machines.toml"


def _result_text() -> str:
    steps = {
        "index": [1, 2],
        "elapsed_s": [0.5, 1.0],
        "done_flops": [1e8, 6e8],
        "phases": {"gemm": {"mean_s": [0.1, 0.2]}},
    }
    one = {
        "schema": "mxpeak.result/1",
        "benchmark": "hpl",
        "status": "valid",
        "problem": {"n": 1000, "nb": 64, "precision": "fp32"},
        "launch": {"ranks": 1},
        "result": {"rate_flops": 1e9, "time_s": 1.0},
        "telemetry": {"steps": steps},
    }
    return json.dumps({"schema": "mxpeak.results/1", "results": [one]})


def _config_text() -> str:
    said = {
        "n": (1000,),
        "nb": (64,),
        "trace": "t.json",
        "checkpoint": "kept",
        "every": "5m",
        "prometheus": "p",
        "out": "o",
    }
    settings = {name: {"value": value, "origin": "flag"} for name, value in said.items()}
    one = {"schema": "mxpeak.result/1", "benchmark": "hpl", "status": "valid", "config": settings}
    return json.dumps({"schema": "mxpeak.results/1", "results": [one]})


def _part_text() -> str:
    about = {"generation": "g", "number": 1, "steps": 1, "m": 3, "n": 4, "nb": 2, "P": 1, "Q": 1, "p": 0, "q": 0}
    about |= {"dtype": "float64", "elapsed_s": 1.0, "unix": 1.0, "notes": {"blocks": "00" * 8}}
    return json.dumps({"about": _record().about(), **about})


def _record() -> keeping.RunRecord:
    settings = {"n": "4", "nb": "2", "grid": "1x1", "seed": "7", "watchdog": "off"}
    return keeping.RunRecord("this", "hpl", keeping.__version__, settings)


def _run_text() -> str:
    about = _record().about()
    more = {**about["settings"], "prometheus": "p", "trace": "t", "config": "c"}
    return json.dumps({"schema": keeping.SCHEMA, **about, "settings": more, "digest": keeping._digest(about)})


Door = Callable[[str, Path], object]
#: What stands whole at the beginning, and where it goes in.
DOORS: Mapping[str, tuple[Callable[[], str], Door]] = {
    "HPL.dat": ((GOLDEN / "lists.dat").read_text, lambda text, _: read_hpl(text, "HPL.dat")),
    "HPL-MxP.dat": ((GOLDEN / "mxp.dat").read_text, lambda text, _: read_mxp(text, "HPL-MxP.dat")),
    "Matrix Market": (
        lambda: (
            "%%MatrixMarket matrix coordinate real general\n% a comment\n\n3 3 5\n"
            "1 1 2.5\n2 2 -1e3 \n3 3 1\n1 3 4\n\n3 1 .5\n"
        ),
        matrix_market,
    ),
    "Matrix Market, compressed": (
        lambda: "%%MatrixMarket matrix coordinate integer symmetric\n2 2 3\n1 1 2\n2 1 1\n2 2 2\n",
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
    "result": (_result_text, result),
    "result to repeat": (_config_text, config),
    "part of a checkpoint": (_part_text, part),
    "run.json of checkpoints": (_run_text, run_json),
    "tuned settings": (
        lambda: json.dumps(
            {
                "schema": "mxpeak.tuned/1",
                "machine": {"host": "a"},
                "fingerprint": {},
                "winners": [{"benchmark": "hpl", "settings": {"nb": 128}}],
            }
        ),
        book,
    ),
    "command line": (
        lambda: (
            "run hpl -N 1000,2000 --nb 64 --grid 1x2 --bcast long --depth 1 --threads 2 --mem 50% --watchdog 10,60 "
            "--every 5m --split 0.5 --json r.json --out here --device cpu --min-gflops 3"
        ),
        command_line,
    ),
}


def at_door(name: str, text: str, folder: Path) -> str | None:
    """A text at a door: None if it was taken, or what the refusal says; anything else raises."""
    _, door = DOORS[name]
    try:
        door(text, folder)
    except (UsageError, BadBookError) as error:
        said = str(error)
        assert said.strip()
        assert len(said) < 20_000, said[:300]
        return said
    return None


def try_one(name: str, seed: int, folder: Path) -> str | None:
    """One mutated text at a door, as `at_door`."""
    return at_door(name, crash(name, seed), folder)


def crash(name: str, seed: int) -> Any:
    """The text of a seed, for whoever looks into a failure."""
    return mutated(DOORS[name][0](), random.Random(f"{name} {seed}"))
