"""The rules of HPCG for an official result (its reference code, report and FAQ).

time      1800 s of sets
memory    at least a quarter of the machine's memory
storage   indirect columns and fp64. The rules do not mention compressed columns, so the official rating uses 32-bit
          indices. On CPUs it uses storage by rows, which implies the natural order (bench/sparse.py, order_of).
mode      --mode official; --mode explore labels its results

The rules allow other row orders, storage formats and padding, but do not credit the iterations that they add.
"""

from __future__ import annotations

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.rules import Violation
from mxpeak.bench.sparse import PLAIN, auto_storages, mode_violations, plain_storage
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.distributed.stencil import Form
from mxpeak.layout.stencil import LEVELS
from mxpeak.records import three_digits


def storages(config: HpcgConfig) -> tuple[str, ...]:
    """Return the storage formats to measure, the official one first.

    Compressed storage is measured together with plain storage for comparison. With --quick, only one format is
    measured.
    """
    if config.storage in PLAIN:
        return (config.storage,)
    if config.storage == "auto":
        return auto_storages(config)
    return ("packed",) if config.quick else ("packed", plain_storage(config))


def form(storage: str, levels: int = LEVELS) -> Form:
    """Return the storage form of the problem: fp64 on every level, with symmetric Gauss–Seidel sweeps."""
    return Form(("fp64",) * levels, "fp64", storage, symmetric=True)


def forms(storage: str) -> tuple[Form, Form]:
    """Return the two storage forms that are in memory at the same time during a run.

    The first form is the multigrid hierarchy of the problem. The second form is a single level: the finest matrix with
    the enlarged diagonal of the spectral test.
    """
    return form(storage), form(storage, 1)


def foreseen(config: HpcgConfig, seconds: float, storage: str) -> list[Violation]:
    """Return the published rules that a run breaks if its sets take `seconds` in total."""
    broken = mode_violations(config, storage)
    if seconds < OFFICIAL_S:
        text = f"the sets take {three_digits(seconds)} s, but the rules require --rt {OFFICIAL_S:g} or more"
        broken.append(Violation("time", text))
    return broken
