"""Create bad input that is guided by coverage: the code that a text executes determines the next texts.

    pip install atheris
    python -m tests.fuzz.guided "HPL.dat" -runs=20000

The first argument is a reader of tests/support/fuzzing.py; the others are passed to libFuzzer.  Any exception except a
refusal ends the run, and libFuzzer stores the text and prints its path.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path

atheris = import_module("atheris")  # not needed by tests
with atheris.instrument_imports(include=["mxpeak"]):
    from tests.support.fuzzing import DOORS, at_door


def main() -> None:
    door = sys.argv.pop(1)
    whole, _ = DOORS[door]
    with tempfile.TemporaryDirectory() as name:
        folder, corpus = Path(name), Path(name) / "corpus"
        corpus.mkdir()
        (corpus / "whole").write_text(whole(), encoding="utf-8")

        def check(data: bytes) -> None:
            at_door(door, data.decode("utf-8", errors="replace"), folder)

        atheris.Setup([*sys.argv, "-len_control=0", str(corpus)], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
