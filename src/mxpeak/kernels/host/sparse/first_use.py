"""Declare the entry points of the sparse benchmarks and of `gmres` for the formats of matrices and vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import from_dtype

from mxpeak.kernels.contract.sparse import Rows
from mxpeak.kernels.host.engine.first_use import Entry
from mxpeak.kernels.host.engine.jit import FLAG, INT, INTEGERS, TABLE, VECTOR, WORDS
from mxpeak.kernels.host.sparse.chunk_format import ChunkColumns, ChunkMatrix, GroupCuts
from mxpeak.kernels.host.sparse.gs_colored import StepList
from mxpeak.kernels.host.sparse.matrix import FORMATS
from mxpeak.kernels.host.sparse.natural.coarse_residual import ChunkCopies, Groups, RowCopies
from mxpeak.kernels.host.sparse.natural.gs_csr import CsrColumns, CsrMatrix
from mxpeak.kernels.host.sparse.natural.schedule import Schedule
from mxpeak.kernels.host.sparse.natural.slot_format import ChunkCuts, SlotColumns, SlotMatrix
from mxpeak.kernels.host.sparse.rows import Halo, OrderedRows
from mxpeak.precision import PRECISIONS

#: Functions that take more than two seconds to compile, and functions that take about one second. All others take
#: less.
SLOW = ("count_slots", "sweep_forward", "fill_slots", "sweep_backward", "sweep", "cut_rows", "stencil_rows")
SLOWER_THAN_MOST = ("find_entries", "find_needs", "makespan", "residual_in_chunks", "unit_edges", "multiply")
#: The preconditioners that use Gauss–Seidel sweeps, and the preconditioners with coarser levels.
SWEEPING, MULTILEVEL = ("gs", "sgs", "stencil", "amg"), ("stencil", "amg")

FP64, INT32, FLAGS = types.float64, types.int32[::1], types.boolean[::1]
LINES, SUMS = types.int32[:, ::1], types.float64[:, ::1]


def named(kind: type, *fields: Any) -> Any:
    """Return the Numba type of a named tuple whose fields have these types."""
    return types.BaseTuple.from_types(fields, kind)


ROWS, ORDERED = named(Rows, INT, INT, INTEGERS, INT32, VECTOR), named(OrderedRows, INT32, INT32, INTEGERS, INT32)
HALO, GROUP_CUTS = named(Halo, INT32, INTEGERS, INT32), named(GroupCuts, INTEGERS, INTEGERS, INTEGERS, FLAGS, INT)
CUTS, STEPS = named(ChunkCuts, INTEGERS, INTEGERS, INT), named(StepList, INTEGERS, INTEGERS)
SCHEDULE = named(Schedule, INTEGERS, INT32, LINES, INT, INT, INT)
GROUPS = named(Groups, INT32, INTEGERS, INTEGERS, INTEGERS, INT32)
#: For each matrix type: the module of its products, the type of its columns, and the array types of these columns.
ENCODED: dict[type, tuple[str, type, tuple[Any, ...]]] = {
    CsrMatrix: ("natural.gs_csr", CsrColumns, (TABLE, INT32, INT32, INT32)),
    SlotMatrix: ("natural.gs_simd", SlotColumns, (INTEGERS, LINES, INT32, INT32)),
    ChunkMatrix: ("gs_colored", ChunkColumns, (LINES, INT32, types.uint16[::1], INT32)),
}


def vector_of(values: str) -> Any:
    """Return the Numba type of a vector, or of a matrix's stored values, in a format."""
    return from_dtype(FORMATS[values][1])[::1]


def sums_of(vectors: str) -> Any:
    """Return the Numba type of a vector in the format in which products with `vectors` are added."""
    return vector_of(PRECISIONS[vectors].accumulate)


def matrix_of(kind: type, values: str, vectors: str) -> Any:
    """Return the Numba type of a matrix with these values, for vectors of a format."""
    real = sums_of(vectors)
    scratch = {CsrMatrix: (), SlotMatrix: (real,), ChunkMatrix: (INTEGERS, real)}[kind]
    return named(kind, *ENCODED[kind][2], vector_of(values), real, *scratch)


def on_team(module: str, name: str, *arguments: Any) -> Entry:
    """Return the entry point of a function that all threads of a team call.

    `arguments` are the argument types after the thread number and the number of threads.
    """
    return Entry(f"sparse.{module}", name, (INT, INT, *arguments))


def alone(module: str, name: str, *arguments: Any) -> Entry:
    """Return the entry point of a function that one thread calls; `arguments` are its types."""
    return Entry(f"sparse.{module}", name, arguments)


def bits_of(values: str) -> Any:
    """Return the Numba type of stored values that are handled as unsigned integers."""
    return from_dtype(np.dtype(f"u{FORMATS[values][1].itemsize}"))[::1]


def store(kind: type, values: str, vectors: str) -> list[Entry]:
    """Return the entry points that store a matrix."""
    _, columns, arrays = ENCODED[kind]
    bits, encoded = bits_of(values), named(columns, *arrays)
    entries = [
        alone("rows", "count_halo", INT32, FLAGS, ROWS, INT32),
        alone("rows", "halo_entries", INT32, ROWS, HALO, sums_of(vectors)),
        on_team("rows", "diagonal_of", INT32, ROWS, sums_of(vectors)),
        on_team("rows", "bandwidth", ROWS, INTEGERS)
        if kind is ChunkMatrix
        else on_team("rows", "count_parts", ORDERED, INT32, INT32, INT32),
    ]
    if values == "bf16":
        entries.append(on_team("rows", "to_bf16", VECTOR, vector_of(values)))
    if kind is CsrMatrix:
        entries.append(on_team("natural.gs_csr", "fill_parts", ORDERED, bits, encoded, bits))
        entries.append(alone("natural.gs_csr", "cut_units", INT32, INT32, INT32, TABLE))
    elif kind is SlotMatrix:
        entries.append(on_team("natural.slot_format", "count_slots", ORDERED, CUTS, INT, FLAG, LINES))
        entries.append(on_team("natural.slot_format", "fill_slots", ORDERED, bits, INT, INT, FLAG, encoded, bits))
        entries.append(alone("natural.slot_format", "cut_chunks", INT32, INTEGERS, INTEGERS))
    else:
        cuts = INTEGERS, ORDERED, FLAG, INT, INTEGERS, INTEGERS, FLAGS
        entries.append(on_team("chunk_format", "cut_rows", *cuts))
        entries.append(on_team("chunk_format", "count_slots", ORDERED, GROUP_CUTS, INT, INT, LINES))
        entries.append(on_team("chunk_format", "fill_slots", ORDERED, bits, GROUP_CUTS, INT, INT, encoded, bits))
    return entries


def product(kind: type, values: str, vectors: str) -> Entry:
    """Return the entry point that multiplies a matrix and a vector."""
    matrix = matrix_of(kind, values, vectors)
    return on_team(ENCODED[kind][0], "multiply", matrix, vector_of(vectors), sums_of(vectors))


def sweeps(kind: type, values: str, vectors: str, *, backward: bool = True) -> list[Entry]:
    """Return the entry points of forward Gauss–Seidel sweeps and, if `backward`, of backward sweeps.

    In chunks, one entry point sweeps in both directions.
    """
    A, x, module = matrix_of(kind, values, vectors), vector_of(vectors), ENCODED[kind][0]
    if kind is ChunkMatrix:
        return [on_team(module, "sweep", types.Tuple((INTEGERS, INT)), STEPS, A, x, x, x, INT)]
    forward = on_team(module, "sweep_forward", SCHEDULE, A, x, x, x, FLAG)
    return [forward, *([on_team(module, "sweep_backward", SCHEDULE, A, x, x)] if backward else ())]


def residuals(kind: type, values: str, vectors: str) -> list[Entry]:
    """Return the entry points that compute residuals at the rows of the next coarser level."""
    stored, x, bits, module = vector_of(values), vector_of(vectors), bits_of(values), "natural.coarse_residual"
    system = matrix_of(kind, values, vectors), x, x, x, x, INT
    if kind is ChunkMatrix:
        return [on_team("gs_colored", "residual", types.Tuple((INTEGERS, INT32)), *system)]
    if kind is CsrMatrix:
        return [on_team(module, "residual", named(RowCopies, INT32, INTEGERS, INT32, stored), *system)]
    copies = named(ChunkCopies, INT32, INTEGERS, INTEGERS, LINES, INT32, INT32, stored)
    columns, packed = named(SlotColumns, *ENCODED[kind][2]), types.Tuple((LINES, INT32, INT32))
    return [
        on_team(module, "residual_in_chunks", copies, *system),
        on_team(module, "find_entries", GROUPS, INTEGERS, INT, columns, bits, INTEGERS),
        on_team(module, "fill_slots", GROUPS, FLAG, INT, INTEGERS, packed, bits, bits),
        on_team(module, "count_slots", GROUPS, FLAG, INT, LINES),
        alone(module, "cut_groups", INT32, FLAG, INTEGERS),
    ]


def order(kind: type, name: str) -> list[Entry]:
    """Return the entry points that order the rows by color, or that schedule natural-order sweeps on threads."""
    if kind is not ChunkMatrix:
        begins = types.Array(INT, 1, "A") if kind is CsrMatrix else INTEGERS
        return [
            alone("natural.schedule", "find_needs", INTEGERS, INT32, INT32, LINES, LINES),
            alone("natural.schedule", "makespan", INTEGERS, INT32, INT32, VECTOR, INT),
            on_team("natural.schedule", "unit_edges", ORDERED, begins, INT32, INTEGERS, INTEGERS, INT32),
        ]
    group = alone("rows", "group_rows", INT32, INT, INT32, INTEGERS)
    if name == "jpl":
        return [group, on_team("rows", "jpl_round", ROWS, INT, INT32, INT32, INTEGERS)]
    return [group, alone("rows", "levels" if name == "levels" else "greedy_colors", ROWS, INT32)]


def halo(kind: type, vectors: str) -> list[Entry]:
    """Return the entry points that find the entries in columns of other ranks and multiply these entries."""
    x, y = vector_of(vectors), sums_of(vectors)
    marks = [alone("chunk_format", "mark", ORDERED, FLAGS, GROUP_CUTS, INT32, FLAG, FLAGS)]
    operations = on_team("rows", "touches_halo", ROWS, FLAGS), on_team("vectors", "add_halo", HALO, y, x, y)
    return [*operations, *(marks if kind is ChunkMatrix else ())]


def updates(vectors: str) -> list[Entry]:
    """Return the entry points of operations on fp64 vectors and on corrections in another format."""
    x = vector_of(vectors)
    return [
        *(on_team("vectors", name, VECTOR, VECTOR, SUMS) for name in ("dot", "subtract_from")),
        *(on_team("vectors", "scale", y, factor, z) for y, factor, z in ((x, FP64, VECTOR), (x, x.dtype, x))),
        on_team("vectors", "add_scaled", VECTOR, FP64, x),
    ]


def basis(vectors: str, stored: str) -> list[Entry]:
    """Return the entry points of Gram–Schmidt orthogonalization against `stored` vectors."""
    w, q = vector_of(vectors), vector_of(stored)
    Q, forms = types.Array(q.dtype, 2, "A"), ((q, FP64, VECTOR), (q, w.dtype, w), (w, w.dtype, q))
    entries = [on_team("vectors", "scale", *form) for form in forms if w != q]
    entries += [on_team("vectors", f"subtract_and_{then}", Q, INT, w, w, SUMS) for then in ("project", "square")]
    return [*entries, on_team("vectors", "project", Q, INT, w, SUMS), on_team("vectors", "combine", Q, INT, w, w)]


def stencil(form: str, *, backward: bool) -> list[Entry]:
    """Return the entry points for matrices described by "<storage> <order> <values>/… <vectors> <basis>".

    `backward` is true if the benchmark also sweeps backward.
    """
    storage, ordering, by_level, vectors, _ = form.split()
    values, natural = by_level.split("/"), ordering in ("natural", "surface_last") and storage != "ell"
    kinds = (SlotMatrix, CsrMatrix) if storage == "rows" else (SlotMatrix if natural else ChunkMatrix,)
    pairs = {(each, "fp64" if each == "fp64" else vectors) for each in values}
    outer = values[0], "fp64"  # the finest matrix, for residuals in fp64
    entries = [on_team("rows", "largest_error", VECTOR, VECTOR, VECTOR) for each in values if each != "fp64"]
    for kind in kinds:
        entries += [*order(kind, ordering), product(kind, *outer)]
        entries += sweeps(kind, *outer, backward=False) if len(kinds) > 1 else []  # for the trial of both formats
        for each in pairs:
            entries += [product(kind, *each), *store(kind, *each), *residuals(kind, *each), *halo(kind, each[1])]
            entries += sweeps(kind, *each, backward=backward)
    for x, a in [(vector_of(each), sums_of(each)) for _, each in pairs]:
        entries += [on_team("vectors", name, INT32, x, x) for name in ("gather", "scatter", "scatter_add")]
        entries.append(on_team("vectors", "subtract_halo", HALO, a, x, INT32, x, x))
    return [
        *entries,
        on_team("rows", "stencil_rows", INTEGERS, INTEGERS, TABLE, VECTOR, INTEGERS, INT32, VECTOR),
        on_team("rows", "stencil_counts", INTEGERS, INTEGERS, INTEGERS),
        on_team("rows", "row_sums", INT32, ROWS, VECTOR),
        Entry("norms.tile_pass", "read_all", (INT, INT, TABLE, WORDS)),
    ]


def hpcg_entries(details: str) -> list[Entry]:
    """Return the entry points of HPCG for "<form>[, checked]", the slowest first.

    `<form>` is an argument of `stencil`.
    """
    update = on_team("vectors", "scale_and_add", VECTOR, FP64, VECTOR)
    return slowest_first([*stencil(details.split(", ")[0], backward=True), *updates("fp64"), update])


def hpg_mxp_entries(details: str) -> list[Entry]:
    """Return the entry points of HPG-MxP for "<form>, …[, checked]", the slowest first.

    `<form>` is an argument of `stencil`.
    """
    forms = [form for form in details.split(", ") if form != "checked"]
    entries = [entry for form in forms for entry in stencil(form, backward=False)]
    krylovs = (entry for form in forms for entry in inner(*form.split()[-2:]))
    return slowest_first([*entries, *krylovs])


def inner(vectors: str, stored: str) -> list[Entry]:
    """Return the entry points of an inner iteration with multigrid `vectors` and a basis of `stored` vectors."""
    x, working = vector_of(vectors), PRECISIONS[vectors].accumulate
    if vectors == working:
        return krylov(vectors, stored)
    w = vector_of(working)  # the corrections of all steps are also stored, and then combined
    Z = types.Array(x.dtype, 2, "A")
    casts = [on_team("vectors", "scale", y, w.dtype, z) for y, z in ((x, w), (x, x))]
    return [*krylov(working, stored), *casts, on_team("vectors", "combine", Z, INT, w, w)]


def krylov(vectors: str, stored: str) -> list[Entry]:
    """Return the entry points of GMRES's operations on vectors and on a basis of `stored` vectors."""
    return [*updates(vectors), *basis(vectors, stored)]


def gmres_entries(details: str) -> list[Entry]:
    """Return the entry points of GMRES for "<preconditioner> <smoother> <values> <vectors> <exact> …".

    The slowest entry points come first.
    """
    preconditioner, smoother, values, vectors, exact, *_ = details.split()
    kind, outer = CsrMatrix if smoother == "natural" else ChunkMatrix, values if exact == "True" else "fp64"
    entries = [*krylov(vectors, vectors), *store(kind, values, vectors), *store(kind, outer, "fp64")]
    entries.append(product(kind, outer, "fp64"))
    if preconditioner == "lu" and exact == "True":  # products are in fp64 (see `problem.fp64_products`)
        entries.append(on_team("vectors", "scale", VECTOR, FP64, vector_of(vectors)))
    else:
        entries.append(product(kind, values, vectors))
    if preconditioner in SWEEPING:
        entries += [*sweeps(kind, values, vectors), on_team("rows", "pattern_is_unsymmetric", ROWS, INTEGERS)]
        entries += order(kind, "greedy")
    if preconditioner in MULTILEVEL:  # transfers between levels are stored in the vectors' format
        entries += [*residuals(kind, values, vectors), *store(kind, vectors, vectors), *halo(kind, vectors)]
    return slowest_first(entries)


def slowest_first(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entry points without duplicates, the slowest first."""
    rank = {name: number for number, name in enumerate((*SLOW, *SLOWER_THAN_MOST))}
    return sorted(dict.fromkeys(entries), key=lambda entry: rank.get(entry.name, len(rank)))
