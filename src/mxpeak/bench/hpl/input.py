"""Read and write HPL.dat, the input file of Netlib HPL: 31 lines, of which only the leading words count."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from mxpeak.bench.dat import Dat, dat_text, list_rows, numbered
from mxpeak.bench.hpl.config import FACTS, SWAPS, HplConfig
from mxpeak.configs.grid import ORDERS
from mxpeak.configs.lu import BCASTS
from mxpeak.errors import UsageError
from mxpeak.options import LARGEST_N, integer, real

LINES = 31
FORMS = ("transposed", "no-transposed")


def read_dat(text: str, source: str) -> dict[str, Any]:
    """Parse the text of an HPL.dat and return its values, keyed by the fields of HplConfig.

    Errors name the file `source`.
    """
    dat = Dat.of(text, source, LINES)
    return {
        "output_file": dat.word(3, "output file name"),
        "device_out": dat.value(4, "device out", integer(-LARGEST_N)),
        "n": dat.many(5, "Ns", integer(0)),
        "nb": dat.many(7, "NBs", integer(1)),
        "order": dat.value(9, "PMAP process mapping", numbered(ORDERS)),
        "P": dat.many(10, "Ps", integer(1)),
        "Q": dat.many(10, "Qs", integer(1), below=2),
        "threshold": dat.value(13, "threshold", real()),
        "pfact": dat.many(14, "PFACTs", numbered(FACTS)),
        "nbmin": dat.many(16, "NBMINs", integer(1)),
        "ndiv": dat.many(18, "NDIVs", integer(2)),
        "rfact": dat.many(20, "RFACTs", numbered(FACTS)),
        "bcast": dat.many(22, "BCASTs", numbered(BCASTS)),
        "depth": dat.many(24, "DEPTHs", integer(0)),
        "swap": dat.value(26, "SWAP", numbered(SWAPS)),
        "swap_threshold": max(0, dat.value(27, "swapping threshold", integer(-LARGEST_N))),
        "l1_form": dat.value(28, "form of L1", numbered(FORMS)),
        "u_form": dat.value(29, "form of U", numbered(FORMS)),
        "equilibration": dat.value(30, "equilibration", numbered((False, True))),
        "alignment": dat.value(31, "memory alignment", integer(1)),
        "idle_ranks": True,
    }


def write_dat(config: HplConfig) -> str:
    """Return the text of an HPL.dat with which HPL runs this configuration."""
    return dat_text("HPL input file", _rows(config))


def _rows(config: HplConfig) -> Iterator[tuple[str, str]]:
    """Yield the value and the comment of each line of HPL.dat; raise a UsageError without order or process grid."""
    P, Q = _grid_lists(config)
    rows = partial(list_rows, "HPL.dat")
    if config.n is None:
        raise UsageError("an HPL.dat file needs the order of the matrix; add -N")
    yield config.output_file, "output file name, if device out is neither 6 nor 7"
    yield str(config.device_out), "device out (6 stdout, 7 stderr, other: file)"
    yield from rows("Ns", config.n)
    yield from rows("NBs", config.nb)
    yield str(ORDERS.index(config.order)), "PMAP process mapping (0 row-major, 1 column-major)"
    yield from rows("Ps", P)
    yield " ".join(map(str, Q)), "Qs"
    yield repr(config.threshold), "threshold (0 or less: no check)"
    yield from rows("PFACTs", config.pfact, FACTS)
    yield from rows("NBMINs", config.nbmin)
    yield from rows("NDIVs", config.ndiv)
    yield from rows("RFACTs", config.rfact, FACTS)
    yield from rows("BCASTs", config.bcast, BCASTS)
    yield from rows("DEPTHs", config.depth)
    yield str(SWAPS.index(config.swap)), "SWAP (0 bin, 1 long, 2 mix)"
    yield str(config.swap_threshold), "swapping threshold"
    yield str(FORMS.index(config.l1_form)), "L1 (0 transposed, 1 no-transposed)"
    yield str(FORMS.index(config.u_form)), "U (0 transposed, 1 no-transposed)"
    yield str(int(config.equilibration)), "equilibration (0 no, 1 yes)"
    yield str(config.alignment), "memory alignment in doubles"


def _grid_lists(config: HplConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lists of P and Q; raise a UsageError if the config has no process grid."""
    if config.grid is not None:
        return tuple(p for p, _ in config.grid), tuple(q for _, q in config.grid)
    if config.P is None or config.Q is None:
        raise UsageError("an HPL.dat file needs the process grid; add --grid, or both -P and -Q")
    return config.P, config.Q
