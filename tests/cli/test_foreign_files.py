"""Test that the command line reads files of any kind and content, or refuses them with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxpeak import foreign
from mxpeak.bench.matrix_market import read_matrix
from mxpeak.cli.main import main, parsed
from mxpeak.cli.request import requests
from mxpeak.errors import UsageError
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.records import DEEPEST, read_json
from tests.support.fuzzing import DOORS, at_door

RECORDED = (Path(__file__).parents[1] / "golden" / "recorded.json").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(foreign, "WRITER_S", 0.05)


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def missing(path: Path) -> None:
    """Create no file."""


def holding(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def readers(path: str) -> list[Callable[[], Any]]:
    """Return every function that reads a file."""

    def verb(*words: str) -> Callable[[], Any]:
        return lambda: main(list(words))

    def settings(*words: str) -> Callable[[], Any]:
        return lambda: requests(parsed(["run", "hpl", *words, "--tuned", "no"]), {})

    return [
        verb("report", path),
        verb("compare", path, path),
        verb("baseline", "set", path),
        settings("--config", path),
        settings("--dat", path),
        verb("run", "hpl", "-N", "100", "--threads", "1", "--baseline", path, "--out", "out"),
        lambda: find_machine(path),
        lambda: read_matrix(path),
    ]


@pytest.mark.parametrize(
    "make", [folder, pipe, device, circle, missing, holding(b"\0"), holding(b"\xff\xfe{\x00"), holding(b"{" * 5000)]
)
def test_what_is_no_text_file_is_refused_at_once(
    make: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make(Path("odd"))
    for read in readers("odd"):
        begun = time.monotonic()
        said = refusal(read, capsys)
        assert "odd" in said
        assert "Traceback" not in said
        assert time.monotonic() - begun < 5.0


def refusal(read: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message about a refused file, from the error or from stderr."""
    try:
        code = read()
    except UsageError as error:
        return str(error)
    return capsys.readouterr().err if code == 2 else f"code {code}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"schema": "\xff"}', "0xff"),
        (b'{"schema": NaN}', "NaN is not a JSON number"),
        (b'{"schema": 1e400}', "beyond the range of fp64"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "more than 64 bits"),
        (b'{"schema": "mxpeak.results/1", "schema": "mxpeak.results/1"}', "occurs twice in one object"),
        (b"[" * 100_000, "neither a result file nor a report"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"a": ' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), "nested too deeply"),
        (b'{"schema": "mxpeak.results/1", "results": {}}', "not a list"),
        (b"{}", "its schema is not that of a result file"),
    ],
)
def test_what_is_no_json_of_a_result_is_refused_with_the_reason(
    data: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd.json").write_bytes(data)
    assert main(["report", "odd.json"]) == 2
    assert message in capsys.readouterr().err


def test_a_byte_order_mark_does_no_harm() -> None:
    Path("marked.json").write_bytes(b"\xef\xbb\xbf" + RECORDED.encode())
    Path("marked.toml").write_bytes(b"\xef\xbb\xbfn = [1000]\n")
    assert main(["compare", "marked.json", "marked.json"]) == 0
    assert main(["report", "marked.json"]) == 0
    (one,) = requests(parsed(["run", "hpl", "--config", "marked.toml", "--tuned", "no"]), {})
    assert one.config.n == (1000,)


def test_a_pipe_with_a_writer_is_read() -> None:
    Path("result.json").write_text(RECORDED, encoding="utf-8")
    os.mkfifo("pipe")
    script = f"cat result.json > pipe & {sys.executable} -m mxpeak report <(cat result.json) pipe --format csv; wait"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert len(ended.stdout.splitlines()) == 1 + 2 * 5


def test_a_file_that_is_too_large_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("large", "wb") as file:
        file.truncate(foreign.MAX_BYTES + 1)
    assert main(["report", "large"]) == 2
    assert f"{foreign.MAX_BYTES + 1} bytes, but mxpeak reads at most {foreign.MAX_BYTES}" in capsys.readouterr().err
    monkeypatch.setattr("mxpeak.records.MAX_CONTAINERS", 3)
    with pytest.raises(ValueError, match="more than 3 arrays and objects"):
        read_json("[[],[],[]]")
    monkeypatch.setattr("mxpeak.records.MAX_ITEMS", 3)
    with pytest.raises(ValueError, match="more than 3 items"):
        read_json("[1,2,3,4,5]")


def test_a_file_that_grows_beyond_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MAX_BYTES", 10)
    with pytest.raises(OSError, match="more than 10 bytes"):
        foreign.read_bytes("/proc/self/status")  # whose reported size is 0


def test_a_name_that_is_too_long_is_refused_in_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    for read in readers("odd" * 2000):
        assert "odd" in refusal(read, capsys)
    start = ["run", "hpl", "-N", "100", "--threads", "1"]
    for flag in ("--out", "--json", "--trace", "--events", "--prometheus", "--checkpoint"):
        assert main([*start, flag, "odd" * 2000]) == 2
        assert "File name too long" in capsys.readouterr().err
    Path("result.json").write_text(RECORDED, encoding="utf-8")
    assert main(["report", "result.json", "--out", "n" * 250 + ".html"]) == 0, "names may be as long as they can be"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("secret.json").write_text(RECORDED, encoding="utf-8")
    Path("secret.json").chmod(0)
    assert main(["report", "secret.json"]) == 2
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in DOORS if name != "part of a checkpoint"])
def test_the_whole_files_of_the_mutations_are_accepted(name: str, tmp_path: Path) -> None:
    assert at_door(name, DOORS[name][0](), tmp_path) is None


def test_settings_of_a_result_name_no_file_to_write() -> None:
    body = json.loads(RECORDED)
    (hpl,) = (request for request in body["results"] if request["benchmark"] == "hpl")
    outputs = {"prometheus": "p", "json": "j", "events": "e", "out": "o", "trace": "t", "checkpoint": "c"}
    hpl["config"] |= {name: {"value": value, "origin": "flag"} for name, value in outputs.items()}
    Path("result.json").write_text(json.dumps({**body, "results": [hpl]}))
    (request,) = requests(parsed(["run", "hpl", "--config", "result.json", "--tuned", "no"]), {})
    output = request.output
    assert (output.prometheus, output.json, output.events, output.out) == (None, None, None, None)
    assert (request.config.trace, request.config.checkpoint) == (None, None)


def test_a_result_without_a_benchmark_or_settings_repeats_no_run() -> None:
    body = json.loads(RECORDED)
    for missing_key in ("benchmark", "config"):
        one = {name: value for name, value in body["results"][0].items() if name != missing_key}
        Path("result.json").write_text(json.dumps({**body, "results": [one]}))
        with pytest.raises(UsageError, match="it contains no settings"):
            requests(parsed(["run", "hpl", "--config", "result.json", "--tuned", "no"]), {})


def test_reading_a_result_loads_no_package_for_schemas() -> None:
    Path("result.json").write_text(RECORDED, encoding="utf-8")
    code = "import sys; from mxpeak.cli.main import main; main(['report', 'result.json', '--format', 'csv']); "
    code += "print(*[name for name in ('jsonschema', 'numpy', 'mxpeak.report.html') if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == ""
