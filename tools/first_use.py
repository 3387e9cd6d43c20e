"""What first uses compile, as kernels/host/first_use.txt lists it.

python tools/first_use.py [NUMBER…]  what the list lacks, for some of RUNS and SOLVES or all
python tools/first_use.py --write    the list anew, the longest to compile first: some two minutes

Where machine code is cached a use takes less than at first: which kernels are faster here has been tried before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from mxpeak.kernels.host.engine.first_use import FILE, LOADED, LOADING, PACKAGE, entries
from mxpeak.kernels.host.sparse.autotune import WAYS

#: Runs that take what is listed, each for one use, and systems that are solved with a preconditioner: one whose
#: numbers are few bits, and one of others.
RUNS = (
    ["hpg-mxp", "--quick", "--nx", "16", "--rt", "0"],
    ["hpcg", "--quick", "--nx", "16", "--rt", "0"],
    ["norms", "-N", "64"],
)
SOLVES = [(preconditioner, scale) for preconditioner in ("lu", "amg", "gs") for scale in (1.0, 1.1)]

Found = dict[str, float]


def taken(number: int, out: str) -> None:
    """A run, or a solve."""
    if number < len(RUNS):
        from mxpeak.cli.main import main

        command = ["run", *RUNS[number], "--ranks", "1", "--kernels", "host", "--out", out, "--quiet"]
        assert main(command) in (0, 4), command
        return
    import numpy as np
    import scipy.sparse as sp

    import mxpeak as mx

    preconditioner, scale = SOLVES[number - len(RUNS)]
    A = scale * sp.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    mx.gmres(A, np.ones(64), preconditioner=preconditioner, device="cpu")


def recorded(number: int, out: str, rows: int) -> dict[str, Found]:
    """The entry points of a use, with the seconds that they took to compile where they did.  In a fresh process.

    `rows`: how many rows are swept at a time, whatever turns out to be faster here; as it turns out where it is 0.
    """
    from numba.core import event
    from numba.core.dispatcher import Dispatcher

    from mxpeak.kernels.host.sparse import setup
    from mxpeak.runtime import compile as first_uses

    tried = setup.rows_at_a_time

    def decided(*of: Any) -> int:
        faster = tried(*of)
        return rows or faster

    setup.rows_at_a_time = decided
    uses: list[str] = []
    first_uses.compile_side_by_side = lambda name, cores=None: uses.append(name)  # type: ignore[assignment]
    with event.install_recorder("numba:compile") as recorder:
        taken(number, out)
    (use,) = (use for use in uses if use not in (LOADING, ""))
    seconds: dict[tuple[Any, Any], float] = {}
    begun = {}
    for when, one in recorder.buffer:
        key = one.data["dispatcher"], one.data["args"]
        if one.is_start:
            begun[key] = when
        else:
            seconds[key] = when - begun[key]
    found: Found = {}
    for module in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
        short = module.rpartition(".")[2]
        for name, entry in vars(sys.modules[module]).items():
            own = isinstance(entry, Dispatcher) and entry.py_func.__module__ == module
            if own and short not in LOADED and type(entry._cache).__name__ == "_Kept":
                for arguments_of in entry.overloads:
                    told = ", ".join(map(spelled, arguments_of))
                    found[f"{short}.{name}({told})"] = seconds.get((entry, arguments_of), 0.0)
    return {use: found}


def spelled(kind: Any) -> str:
    """A type as numba.types spells it."""
    from numba.core import types

    if isinstance(kind, types.Array) and kind.layout == "C" and kind.mutable and kind.aligned:
        return f"{spelled(kind.dtype)}[{', '.join([':'] * (kind.ndim - 1) + ['::1'])}]"
    return "boolean" if kind == types.boolean else repr(kind).replace("bool,", "boolean,")


def all_recorded(numbers: Iterable[int], environ: dict[str, str], cold: str | None = None) -> dict[str, Found]:
    """Those of several uses; with a `cold` cache each as the first that tries which kernels are faster, either way."""
    found: dict[str, Found] = defaultdict(dict)
    for number, rows in product(numbers, WAYS if cold else (0,)):
        for tried in Path(cold).glob("*/rows-*") if cold else ():
            tried.unlink()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--record", str(number), str(rows), folder]
            subprocess.run(command, check=True, env=environ)
            for use, entry_points in json.loads((Path(folder) / "found.json").read_text()).items():
                found[use] = entry_points | found[use]  # the seconds of the run that compiled it
    return found


def text(found: dict[str, Found]) -> str:
    """The file: a letter for each use, then each entry point with the letters of the uses that take it."""
    letters = dict(zip(found, ascii_lowercase))
    users: dict[str, str] = defaultdict(str)
    longest: Found = defaultdict(float)
    for use, entry_points in found.items():
        for call, seconds in entry_points.items():
            users[call] += letters[use]
            longest[call] = max(longest[call], seconds)
    lines = [f"{letter} {use}" for use, letter in letters.items()]
    return (
        "\n".join([*lines, "", *(f"{users[call]} {call}" for call in sorted(users, key=lambda c: -longest[c]))]) + "\n"
    )


def main(arguments: list[str]) -> int:
    """Write the list, or say what it lacks."""
    if arguments[:1] == ["--record"]:
        number, rows, folder = arguments[1:]
        found = recorded(int(number), f"{folder}/out", int(rows))
        (Path(folder) / "found.json").write_text(json.dumps(found))
        return 0
    environ, numbers = {**os.environ, "MXPEAK_TUNED": "no"}, range(len(RUNS) + len(SOLVES))
    if arguments == ["--write"]:
        with tempfile.TemporaryDirectory() as cold:
            FILE.write_text(text(all_recorded(numbers, {**environ, "MXPEAK_CACHE_DIR": cold}, cold)))
        return 0
    lacking = []
    for use, taken_by_it in all_recorded(map(int, arguments) if arguments else numbers, environ).items():
        listed = {f"{one.module}.{one.name}{one.types}" for one in entries(use)}
        lacking += [f"{use}: {call} is not listed" for call in sorted(set(taken_by_it) - listed)]
    print("\n".join(lacking) or "nothing is lacking")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
