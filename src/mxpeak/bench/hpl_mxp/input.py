"""Read and write HPL-MxP.dat, the input file of rocHPL-MxP: 14 lines, without pivoting options and with one grid."""

from __future__ import annotations

from typing import Any

from mxpeak.bench.dat import Dat, dat_text, list_rows, numbered
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.configs.grid import ORDERS
from mxpeak.configs.lu import BCASTS
from mxpeak.errors import UsageError
from mxpeak.options import LARGEST_N, integer, real

LINES = 14


def read_dat(text: str, source: str) -> dict[str, Any]:
    """Parse the text of an HPL-MxP.dat and return its values, keyed by the fields of HplMxpConfig.

    Errors name the file `source`.
    """
    dat = Dat.of(text, source, LINES)
    return {
        "output_file": dat.word(3, "output file name"),
        "device_out": dat.value(4, "device out", integer(-LARGEST_N)),
        "n": dat.many(5, "Ns", integer(1)),
        "nb": dat.many(7, "NBs", integer(1)),
        "order": dat.value(9, "PMAP process mapping", numbered(ORDERS)),
        "P": (dat.value(10, "P", integer(1)),),
        "Q": (dat.value(11, "Q", integer(1)),),
        "threshold": dat.value(12, "threshold", _threshold),
        "bcast": dat.many(13, "BCASTs", numbered(BCASTS)),
        "idle_ranks": True,
    }


def _threshold(text: str) -> float:
    """Parse the threshold; raise a UsageError if it is not positive."""
    if (value := real()(text)) > 0.0:
        return value
    raise UsageError(f"the threshold {value:g} skips the check, but a mixed-precision result needs a check; use 16.0")


def write_dat(config: HplMxpConfig) -> str:
    """Return the text of an HPL-MxP.dat for this configuration: orders, block sizes, process grid and broadcasts."""
    if config.n is None or config.grid is None or len(config.grid) != 1:
        raise UsageError("an HPL-MxP.dat file needs the order of the matrix and the process grid; add -N and --grid")
    ((P, Q),) = config.grid
    rows = [
        (config.output_file, "output file name, if device out is neither 6 nor 7"),
        (str(config.device_out), "device out (6 stdout, 7 stderr, other: file)"),
        *list_rows("HPL-MxP.dat", "Ns", config.n),
        *list_rows("HPL-MxP.dat", "NBs", config.nb),
        (str(ORDERS.index(config.order)), "PMAP process mapping (0 row-major, 1 column-major)"),
        (str(P), "P"),
        (str(Q), "Q"),
        (repr(config.threshold), "threshold"),
        *list_rows("HPL-MxP.dat", "BCASTs", [BCASTS.index(name) for name in config.bcast]),
    ]
    return dat_text("HPL-MxP input file", rows)
