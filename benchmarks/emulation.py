"""Compute componentwise errors of emulated and native fp64 products for graded matrices, and print a table.

    python benchmarks/emulation.py --n 256,1024,4096 --out result.json

    random     the exponents of all entries of A and B are random integers in [-span, 0]
    opposite   column j of A is scaled by 2^(-span·j/n), and row j of B by 2^(span·j/n): all terms have the same size
    columns    column l of B is scaled by 2^(-span·l/n)

Errors are |Ĉ - A B| / |A||B| in units of u. They are computed from exact values at the entries at which the two
products differ most.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import mxpeak as mx
from mxpeak.perf.host import host_facts, software_facts

Array = np.ndarray[Any, np.dtype[Any]]
U = 2.0**-53


def graded(kind: str, n: int, span: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the factors A and B."""
    A, B = rng.standard_normal((2, n, n))
    steps = np.exp2(np.rint(np.linspace(0.0, span, n)))
    if kind == "random":
        A, B = (np.ldexp(M, -rng.integers(0, span + 1, M.shape)) for M in (A, B))
        return A, B
    return (A / steps, steps[:, None] * B) if kind == "opposite" else (A, B / steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", default="256,1024", help="orders of A and B")
    parser.add_argument("--spans", default="0,10,20,30,40", help="spans of the exponents, in binary digits")
    parser.add_argument("--kinds", default="random,opposite,columns", help="forms of the matrices")
    parser.add_argument("--entries", type=int, default=100, help="entries that are compared with exact values")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print("| form | n | span | emulated, u | native, u | bound, u | moduli | native blocks |")
    print("|---" * 8 + "|")
    for kind in args.kinds.split(","):
        for n in map(int, args.n.split(",")):
            for span in map(int, args.spans.split(",")):
                A, B = graded(kind, n, span, np.random.default_rng(args.seed))
                error = mx.emulation_error(A, B, entries=args.entries)
                in_u = [value / U for value in error[:3]]
                blocks = error.blocks
                total = blocks.emulated + blocks.native
                print(
                    f"| {kind} | {n} | {span} | {in_u[0]:.2f} | {in_u[1]:.2f} | {in_u[2]:.0f} | {blocks.moduli} | "
                    f"{blocks.native} of {total} |",
                    flush=True,
                )
                rows.append(
                    {
                        "form": kind,
                        "n": n,
                        "span": span,
                        **error._asdict(),
                        "blocks": {
                            "emulated": blocks.emulated,
                            "widened": blocks.widened,
                            "native": blocks.native,
                            "moduli": blocks.moduli,
                        },
                    }
                )
    if args.out:
        facts = {
            "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
            "machine": host_facts(),
            "software": software_facts(),
        }
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
