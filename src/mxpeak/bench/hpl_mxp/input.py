"""HPL-MxP.dat, the input file of rocHPL-MxP: HPL.dat without what pivoting needs, and with one grid; 14 lines."""

from __future__ import annotations

from typing import Any

from mxpeak.bench.dat import Dat, numbered
from mxpeak.configs.grid import ORDERS
from mxpeak.configs.lu import BCASTS
from mxpeak.errors import UsageError
from mxpeak.options import LARGEST_N, integer, real

LINES = 14


def read_dat(text: str, source: str) -> dict[str, Any]:
    """The values of an HPL-MxP.dat, keyed as the fields of HplMxpConfig; `source` names the file in errors."""
    dat = Dat.of(text, source, LINES)
    return {
        "output_file": dat.word(3, "output file name"),
        "device_out": dat.one(4, "device out", integer(-LARGEST_N)),
        "n": dat.many(5, "Ns", integer(1)),
        "nb": dat.many(7, "NBs", integer(1)),
        "order": dat.one(9, "PMAP process mapping", numbered(ORDERS)),
        "P": (dat.one(10, "P", integer(1)),),
        "Q": (dat.one(11, "Q", integer(1)),),
        "threshold": dat.one(12, "threshold", _threshold),
        "bcast": dat.many(13, "BCASTs", numbered(BCASTS)),
        "idle_ranks": True,
    }


def _threshold(text: str) -> float:
    value = real()(text)
    if value <= 0.0:
        raise UsageError(f"{value:g} means no check, but a mixed-precision result needs one; write 16.0")
    return value
