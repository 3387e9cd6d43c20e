"""What HPCG's rules ask of an official result (its reference code, report and FAQ), and what labels a run.

time      1800 s of sets
memory    a quarter of the machine's memory or more
storage   indirect columns and doubles; the rules do not mention compressed columns, so the official figure uses plain
          32-bit indices: on CPUs by rows, which means the natural order (bench/sparse.py, order_of)
mode      --mode official; explore labels its results

Orders of one's own, other storages, and padding are allowed; the steps that they cost are not credited.
"""

from __future__ import annotations

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.rules import Violation
from mxpeak.bench.sparse import PLAIN, plain_storage
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.distributed.stencil import Form
from mxpeak.layout.stencil import LEVELS
from mxpeak.records import three_digits


def storages(config: HpcgConfig) -> tuple[str, ...]:
    """How matrices are stored for the figure, and for one beside it: where that was left open, or is compressed.

    With --quick there is none beside it.
    """
    plain = plain_storage(config)
    if config.storage in PLAIN:
        return (config.storage,)
    both = ("packed", plain) if config.storage == "packed" or config.mode == "explore" else (plain, "packed")
    return both[:1] if config.quick else both


def form(storage: str, levels: int = LEVELS) -> Form:
    """The problem in double, for sweeps forward and backward."""
    return Form(("fp64",) * levels, "fp64", storage, symmetric=True)


def forms(storage: str) -> tuple[Form, Form]:
    """What is there at a time: the problem, and the finest matrix once more with a large diagonal."""
    return form(storage), form(storage, 1)


def foreseen(config: HpcgConfig, seconds: float, storage: str) -> list[Violation]:
    """The rules that a run breaks whose sets take so long."""
    found = []
    if config.mode != "official":
        found.append(Violation("mode", "--mode explore was chosen"))
    if storage not in PLAIN:
        found.append(
            Violation("storage", f"{storage}: its columns are compressed, which the published rules do not cover")
        )
    if seconds < OFFICIAL_S:
        found.append(
            Violation("time", f"{three_digits(seconds)} s of sets: the rules require --rt {OFFICIAL_S:g} or more")
        )
    return found
