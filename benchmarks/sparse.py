"""Compare the kernels of HPG-MxP and HPCG with the read bandwidth, for every format and storage, in one process.

    python benchmarks/sparse.py --nx 104,128 --out result.json
    python benchmarks/sparse.py --nx 64 --threads 1 --storage rows,packed --order natural

Each kernel runs directly after the same threads have read the matrix's values (for cgs2, the basis). Rates are those of
the best round after one that is not counted. A share is the kernel's rate, from its minimum number of bytes, divided by
the read bandwidth. The output contains the share of the best rounds, and the median of the shares of each round.
`setup` is the time to generate and store the finest level.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.halo import Exchange
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.stencil import weights
from mxpeak.distributed.system import SparseBasis
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.kernels.host.sparse.sparse import HostSparse
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.stencil import Box
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.spans import Spans

#: Formats of values and vectors, storage formats, and orders.
FORMS = (
    *product((("fp64", "fp64"), ("fp32", "fp32"), ("bf16", "fp32")), ("rows", "packed", "sell"), ("natural",)),
    *product((("fp64", "fp64"), ("fp32", "fp32"), ("bf16", "fp32")), ("packed", "sell"), ("greedy",)),
    *product((("fp16", "fp32"), ("fp8", "fp32"), ("bf16", "fp64")), ("packed",), ("greedy",)),
)
BASIS = (8, 15, 30)
Row = dict[str, Any]


def beside(call: Callable[[], None], read: Callable[[], float], spans: Spans, name: str, repeat: int) -> Row:
    """Return the times of a call that reports its minimum number of bytes as `name`, each directly after a reading.

    The reading returns its number of bytes.
    """
    rates, reads, times = [], [], []
    for round_ in range(repeat + 1):
        begin = time.perf_counter()
        moved = read()
        reads.append(moved / (time.perf_counter() - begin))
        spans.phases.clear()
        call()
        phase = spans.phases[name]
        times.append(phase.time_s)
        rates.append(phase.bytes / phase.time_s)
        flops = phase.flops
        if not round_:
            rates, reads, times = [], [], []
    return {
        "time_s": min(times),
        "flops_s": flops / min(times),
        "bytes_s": max(rates),
        "read_bytes_s": max(reads),
        "share": max(rates) / max(reads),
        "share_median": statistics.median(a / b for a, b in zip(rates, reads)),
    }


def team(threads: int) -> Team:
    """Return threads as in a run: each on its own core, if there are enough cores."""
    cores = one_core_each()[:threads]
    return Team(threads, cores, alone=len(cores) == threads)


def kernels(n: int, args: argparse.Namespace) -> Iterator[Row]:
    k, spans = HostSparse(team(args.threads)), Spans()
    tiny = k.stencil_rows(Box(8, 8, 8), weights())  # compiles all functions before the set-up is timed
    forms = [form for form in FORMS if form[1] in args.storage.split(",") and form[2] in args.order.split(",")]
    for (values, vectors), storage, kind in forms:
        k.store(tiny, k.order(tiny, kind), values, vectors, storage)
    begin = time.perf_counter()
    rows = k.stencil_rows(Box(n, n, n), weights())
    generated = time.perf_counter()
    colours, random = k.order(rows, "greedy"), np.random.default_rng(1)
    ordered = time.perf_counter()
    last: dict[str, Any] = {}
    for (values, vectors), storage, kind in forms:
        order = k.order(rows, "natural") if kind == "natural" else colours
        first = time.perf_counter()
        A = k.store(rows, order, values, vectors, storage, like=last.get(f"{storage} {kind}"))
        stored = time.perf_counter()
        last.setdefault(f"{storage} {kind}", A)
        matrix = SparseMatrix(k, A, Exchange(k, Solo(), (), None, vectors), spans)
        x, b, y = matrix.halo_vector(), zeros(k, A.n, vectors), zeros(k, A.n, vectors)
        b[:] = random.random(A.n)  # not the row sums: if they are zero, x decays to subnormal numbers in half a sweep
        even = range(0, n, 2)
        points = order.old_to_new[[(z * n + y) * n + x for z in even for y in even for x in even]]
        r, keep = zeros(k, len(points), vectors), zeros(k, A.n, vectors)
        row: Row = {
            "nx": n,
            "values": values,
            "vectors": vectors,
            "storage": storage,
            "order": kind,
            "rows_at_a_time": A.rows_at_a_time,
            "bytes": A.bytes,
            "index_bytes": A.index_bytes,
            "stored_per_entry": (A.lower + A.upper + A.n) / A.nnz,
            "store_s": stored - first,
            "generate_s": generated - begin,
            "order_s": ordered - generated,
        }
        for name, phase, call in (
            ("sweep", "gs", partial(matrix.relax, b, x)),
            ("sweep from zero", "gs", partial(matrix.relax_from_zero, b, x)),
            ("backward half", "gs", partial(matrix.relax_backward, b, x, keep)),
            ("product", "spmv", partial(matrix.multiply, x, y)),
            ("residual", "restriction", partial(matrix.residual_at, b, x, points, r, swept=True)),
            ("residual after both halves", "restriction", partial(matrix.residual_at, b, x, points, r, keep=keep)),
        ):
            row[name] = beside(call, partial(k.read_values, A), spans, phase, args.repeat)
        show(f"{n} {values}/{vectors} {storage} {kind}", row, [name for name in row if isinstance(row[name], dict)])
        yield row


def orthogonalization(n: int, args: argparse.Namespace) -> Iterator[Row]:
    for vectors in ("fp64", "fp32"):
        row: Row = {"nx": n, "vectors": vectors}
        for count in BASIS:
            row[f"cgs2 {count}"] = cgs2(n, count, vectors, args)
        show(f"{n} {vectors}", row, [f"cgs2 {count}" for count in BASIS])
        yield row


def cgs2(n: int, count: int, vectors: str, args: argparse.Namespace) -> Row:
    """Measure the orthogonalization of one more vector against `count` vectors."""
    threads, spans = team(args.threads), Spans()
    kernels = HostSparse(threads)
    Q, norms = SparseBasis(kernels, Solo(), n**3, count + 1, vectors, spans), HostNorms(threads)
    Q.next[:] = 1.0
    Q.append(Q.next, 1.0)
    for _ in range(count - 1):
        Q.orthogonalize(Q.next)
    lines = Q._Q[:count]
    tile = Tile(lines, consecutive(count), consecutive(lines.shape[1]), 0, 0)

    def read() -> float:
        norms.read_all([tile])
        return float(lines.nbytes)

    def call() -> None:
        Q._k = count
        Q.next[:] = 1.0
        Q.orthogonalize(Q.next)

    return beside(call, read, spans, "ortho", args.repeat)


def show(head: str, row: Row, names: Any) -> None:
    cells = [
        f"{name} {row[name]['flops_s'] / 1e9:5.1f} GF/s {row[name]['bytes_s'] / 1e9:5.1f} GB/s "
        f"({row[name]['share']:.2f} {row[name]['share_median']:.2f})"
        for name in names
    ]
    print(f"{head:32}", "  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nx", default="104,128")
    parser.add_argument("--threads", type=int, default=len(one_core_each()))
    parser.add_argument("--storage", default="rows,packed,sell")
    parser.add_argument("--order", default="natural,greedy")
    parser.add_argument("--no-basis", action="store_true", help="omit orthogonalization")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sizes = [int(n) for n in args.nx.split(",")]
    facts = {
        "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
        "threads": args.threads,
        "repeat": args.repeat,
        "load_average": os.getloadavg(),
        "environment": environment(),
        "machine": host_facts(),
        "software": software_facts(),
    }
    body = {
        "kernels": [row for n in sizes for row in kernels(n, args)],
        "orthogonalization": [row for n in sizes if not args.no_basis for row in orthogonalization(n, args)],
    }
    if args.out:
        args.out.write_text(json.dumps({**facts, **body}, indent=1) + "\n")


if __name__ == "__main__":
    main()
