"""HPL and HPL-MxP on the host: BLAS through pointers, and compiled loops for all other operations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.kernels.contract.lu import BLOCKED_INVERSE, BlockSolver, PanelSolve, by_substitution
from mxpeak.kernels.host.engine import blas, matrix_engines
from mxpeak.kernels.host.engine.first_use import LOADED, declared
from mxpeak.kernels.host.engine.matrix_engines import MatrixEngine, engine_for
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512
from mxpeak.kernels.host.lu import block, cast, operands, row_moves, row_sums, solves, substitution, triangle
from mxpeak.kernels.host.lu.emulation import by_sgemm, by_tiles
from mxpeak.kernels.host.lu.operands import EngineTiles, LeftOperand, RightOperand, aligned
from mxpeak.kernels.host.lu.panel import HostPanels
from mxpeak.kernels.synchronous import Synchronous
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.leading_dimension import leading_dimension
from mxpeak.precision import precision as format_of

Array = np.ndarray[Any, np.dtype[Any]]

#: The NumPy type of each precision in which the processor computes.
STORED: dict[str, np.dtype[Any]] = {"fp64": np.dtype(np.float64), "fp32": np.dtype(np.float32)}

#: Bytes of a cache line, and the distance in bytes at which rows compete for the same cache sets.
LINE, PAGE = 64, 4096


def _distribution(rows: BlockCyclic, cols: BlockCyclic) -> Array:
    """Return the distributions as the integers NB, p, P of the rows and NB, p, P of the columns, for compiled code."""
    return np.array([rows.nb, rows.p, rows.P, cols.nb, cols.p, cols.P], dtype=np.int64)


#: Entries of an fp32 matrix that are converted together for a product in fp64; the best value between 2^16 and 2^20.
WIDENED = 1 << 18
#: The largest number of columns that are converted together. A block with longer rows would have fewer rows, and the
#: other factor is read again for each block.
WIDTH = 512
#: Up to this number of columns, vectors are multiplied individually: 0.09 ms per vector for 4000×128 fp32 numbers,
#: compared with 0.8 ms for the conversion.
FEW = 4


#: The largest number of pieces of a product per thread. On two cores that other programs also use, products are 5 to
#: 10 % faster with four pieces per thread than with one.
PIECES = 4
#: The smallest number of rows of a piece, because BLAS packs B again for each piece.
HEIGHT = 256

#: OpenBLAS kernels whose STRSM and DTRSM are slower than the kernel `substitution`. With AVX-512, DTRSM reaches 20 to
#: 35 % of the rate of DGEMM, and the kernel 80 to 90 %. With AVX2, STRSM reaches 100 GFLOP/s of 106.
SLOW_TRSM = ("SkylakeX", "Cooperlake", "SapphireRapids")


class HostLu(HostPanels, Synchronous):
    """The `LuKernels` of the host, which run on the threads of a team.

    `poison` fills new arrays with NaN, for tests. `engines` lists the matrix engines that multiply 16-bit operands.
    """

    def __init__(self, team: Team, poison: bool, engines: Sequence[MatrixEngine]):
        super().__init__(team)
        self._poison, self.engines = poison, tuple(engines)
        self._tiles = np.empty((team.threads, operands.TILES), np.float32)
        int8 = matrix_engines.INT8_ENGINE
        self._emulation_memory = by_tiles.Memory()
        #: The code of the matrix engine for residues of emulated fp64 products, or None if SGEMM multiplies them.
        self.int8_engine = int8.code if matrix_engines.is_present(int8) else None
        #: The routine for solves by substitution: that of BLAS (`library`) or the kernel `substitution` (`kernel`).
        self.trsm = "kernel" if HAS_AVX512 and blas.blas_facts()["architecture"] in SLOW_TRSM else "library"
        self._packed: dict[tuple[int, np.dtype[Any]], tuple[Array, Array]] = {}
        for listed in declared(LOADED):
            listed.compile()  # before any clock starts
        by_engines = (*solves.ENTRIES, *operands.BY_ENGINES) if self.engines else ()
        for entry in (*by_engines, *(substitution.ENTRIES if self.trsm == "kernel" else ())):
            entry.compiled()
        blas.set_threads(1)  # each of the team's threads calls BLAS for its own block, without a second thread pool

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Array:
        ld = leading_dimension(columns, STORED[precision].itemsize, LINE, PAGE)
        return self.buffer(rows * ld, precision).reshape((rows, ld))[:, :columns]

    def emulates(self, precision: str) -> bool:
        return precision not in STORED and engine_for(precision, self.engines) is None

    def cuts_show(self, precision: str) -> bool:
        letter = "d" if precision == "fp64" else "s"
        return engine_for(precision, self.engines) is None and blas.cuts_show(letter, self.threads)

    def buffer(self, size: int, precision: str = "fp64") -> Array:
        array = aligned(size, STORED[precision])
        if self._poison:
            array.fill(np.nan)
        return array

    def operand_buffer(self, rows: int, columns: int, precision: str, side: str) -> Array:
        if engine_for(precision, self.engines) is None:
            return super().operand_buffer(rows, columns, precision, side)
        pairs = operands.size(rows, columns, side)
        array = aligned(pairs + (operands.padding(columns) if side == "left" else 0), np.dtype(np.int32))
        if self._poison:
            array.fill(operands.NAN_PAIR)
        return array[:pairs]

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        if engine_for(precision, self.engines) is None:
            return super().operand_size(rows, columns, precision, side)
        return operands.size(rows, columns, side)

    def operand_matrix(self, buffer: Array, rows: int, columns: int, precision: str, side: str) -> Any:
        engine = engine_for(precision, self.engines)
        if engine is None:
            return super().operand_matrix(buffer, rows, columns, precision, side)
        return (LeftOperand if side == "left" else RightOperand).over(buffer, rows, columns, engine)

    def panel(self, buffer: Array, rows: int, columns: int) -> Array:
        ld = leading_dimension(rows, buffer.itemsize, LINE, PAGE)
        return buffer[: ld * columns].reshape((ld, columns), order="F")[:rows]

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        return leading_dimension(rows, STORED[precision].itemsize, LINE, PAGE) * columns

    def copy(self, source: Array, target: Array) -> None:
        self._team.run(row_moves.copy_block, self.threads, source, target)

    def cast(self, source: Array, target: Array | LeftOperand | RightOperand, precision: str) -> None:
        if isinstance(target, LeftOperand):
            self._team.run(operands.round_left, self.threads, source, target.pairs, precision == "fp16")
        elif isinstance(target, RightOperand):
            self._team.run(operands.round_right, self.threads, source, target.strips, precision == "fp16")
        elif precision not in STORED:
            self._team.run(cast.round_block, self.threads, source, target, cast.FORMATS[precision])
        else:
            self._team.run(cast.copy_rows, self.threads, source, target)

    def permute_rows(self, A: Array, block: int, sources: Array, targets: Array, block_rows: Array) -> None:
        self._team.run(row_moves.permute_rows, self.threads, A, block, sources, targets, block_rows)

    def gather_rows(self, A: Array, indices: Array, out: Array) -> None:
        self._team.run(row_moves.gather_rows, self.threads, A, indices, out)

    def scatter_rows(self, source: Array, indices: Array, A: Array) -> None:
        self._team.run(row_moves.scatter_rows, self.threads, source, indices, A)

    def factor_block(self, D: Array, singular: Array) -> None:
        first = np.zeros(1, dtype=np.int64)
        letter, _ = blas.TYPES[D.dtype]
        block.factor_block(D, first, blas.address(f"{letter}gemm"), blas.address(f"{letter}trsm"))
        singular[0] = first[0]

    def solve_right_upper(self, B: Array, U: Array, precision: str) -> PanelSolve:
        return self._solve_panel("right", B, U, precision)

    def solve_unit_lower(self, L: Array, B: Array, precision: str) -> PanelSolve:
        return self._solve_panel("left", B, L, precision)

    def _solve_panel(self, side: str, B: Array, T: Array, precision: str) -> PanelSolve:
        """Compute B = B T^-1 (`right`, T upper) or B = T^-1 B (`left`, T unit lower), and return the method."""
        engine = engine_for(precision, self.engines)
        if engine is not None and len(T) > solves.BLOCK and self._solve_by_inverses(side, B, T, engine, precision):
            return PanelSolve(precision, BLOCKED_INVERSE)
        if self.trsm == "kernel":
            self._substitute(side == "right", B, T)
        else:
            self._team.run(self._solve_right_part if side == "right" else self._solve_left_part, B, T)
        return by_substitution(B)

    def _solve_right_part(self, tid: int, B: Array, U: Array) -> None:
        """Compute B = B U^-1 in place by BLAS, for the rows of B that belong to thread `tid`."""
        rows = B.shape[0]
        blas.trsm_right_upper(B[rows * tid // self.threads : rows * (tid + 1) // self.threads], U)

    def _solve_left_part(self, tid: int, B: Array, L: Array) -> None:
        """Compute B = L^-1 B in place by BLAS, for the columns of B that belong to thread `tid`."""
        columns = B.shape[1]
        blas.trsm_unit_lower(L, B[:, columns * tid // self.threads : columns * (tid + 1) // self.threads])

    def _substitute(self, right: bool, B: Array, T: Array) -> None:
        """Compute B = B T^-1 or B = T^-1 B by the kernel `substitution`, and by products for a large T."""
        assert B.strides[1] == B.itemsize or B.shape[1] <= 1 or not B.size, "B must be row-major"
        n, threads = len(T), self.threads
        if B.size == 0:
            return
        packed, strips = self._substitution_memory(min(n, substitution.ORDER), B.dtype)
        for k in range(0, n, substitution.ORDER):
            end = min(k + substitution.ORDER, n)
            T_k, B_k = packed[: -(-(end - k) // substitution.ROWS)], B[:, k:end] if right else B[k:end]
            self._team.run(substitution.pack, threads, right, T[k:end, k:end], T_k)
            self._team.run(substitution.substitute, threads, right, B_k, T_k, strips)
            if end < n:
                C, A_k, X_k = (B[:, end:], B_k, T[k:end, end:]) if right else (B[end:], T[end:, k:end], B_k)
                self._subtract(C, A_k, X_k)

    def _substitution_memory(self, order: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Return the packed triangle and the strips of all threads, in memory that is kept for the next solve."""
        if (order, dtype) not in self._packed:
            rows = -(-order // substitution.ROWS) * substitution.ROWS
            packed = aligned(rows * rows, dtype).reshape(rows // substitution.ROWS, -1)
            strips = aligned(self.threads * rows * substitution.WIDTH // dtype.itemsize, dtype)
            if self._poison:
                packed.fill(np.nan)
                strips.fill(np.nan)
            self._packed = {(order, dtype): (packed, strips.reshape(self.threads * rows, -1))}
        return self._packed[order, dtype]

    def _solve_by_inverses(self, side: str, B: Array, T: Array, engine: MatrixEngine, precision: str) -> bool:
        """Compute B = B T^-1 or B = T^-1 B with inverted diagonal blocks and products of the engine.

        If inverses of the blocks of T would be far less accurate than substitution, the method leaves B unchanged and
        returns False.
        """
        threads, n, gemm_address = self.threads, len(T), blas.address("sgemm")
        W = self.matrix(n, n, "fp32")
        self.copy(T, W)
        T_low = self.operand_matrix(self.operand_buffer(n, n, precision, side), n, n, precision, side)
        self.cast(W, T_low, precision)
        growth, u_ratio = np.empty(threads), format_of(precision).u / format_of("fp32").u
        self._team.run(solves.invert_blocks, threads, side == "right", W, growth)
        if not np.max(growth) <= solves.MAX_GROWTH * u_ratio**2:  # true also for a growth of NaN
            return False
        tiles, fp16 = self._engine_tiles(engine), precision == "fp16"
        if isinstance(T_low, RightOperand):
            X_rows = solves.rows_of_X(threads, n)
            self._team.run(solves.solve_right_rounded, threads, tiles, fp16, B, W, T_low.strips, X_rows, gemm_address)
        else:
            X_strips = solves.strips_of_X(threads, n)
            self._team.run(solves.solve_left_rounded, threads, tiles, fp16, B, W, T_low.pairs, X_strips, gemm_address)
        return True

    def _engine_tiles(self, engine: MatrixEngine) -> EngineTiles:
        """Return the engine's code, rows and workspace as a tuple for compiled code."""
        return EngineTiles(engine.code, engine.rows, self._tiles, matrix_engines.TILE_CONFIG)

    def subtract_product(self, C: Array, A: Array | LeftOperand, B: Array | RightOperand) -> None:
        if isinstance(A, LeftOperand) and isinstance(B, RightOperand):
            assert C.strides[1] == C.itemsize or C.shape[1] <= 1 or not C.size, "matrix engines need C by rows"
            tiles, run = self._engine_tiles(A.engine), self._team.run
            run(operands.subtract_product, self.threads, tiles, C, A.pairs, B.strips, B.first)
        elif self.emulation is not None and C.dtype == np.float64 and 0 not in (*C.shape, A.shape[1]):
            self.emulation.subtract_product(C, A, B)
        else:
            self._subtract(C, A, B)

    def _subtract(self, C: Array, A: Any, B: Any) -> None:
        """Compute C -= A B by BLAS. A thread that has finished a piece of C takes the next one.

        With one piece per thread, the slowest core would determine the time.
        """
        (m, n), (down, across) = C.shape, self._team.shape(*C.shape)
        if self.threads > 1:
            down *= max(1, min(PIECES, m // (HEIGHT * down)))
        pieces: SimpleQueue[tuple[slice, slice]] = SimpleQueue()
        for i, j in product(range(down), range(across)):
            pieces.put((slice(m * i // down, m * (i + 1) // down), slice(n * j // across, n * (j + 1) // across)))

        def take_pieces(tid: int) -> None:
            with suppress(Empty):
                while True:
                    rows, columns = pieces.get_nowait()
                    blas.gemm(-1.0, A[rows], B[:, columns], C[rows, columns])

        self._team.run(take_pieces)

    def subtract_emulated_product(self, C: Array, A: Array, B: Array) -> Emulation:
        if C.strides[1] != C.itemsize:
            C, A, B = C.T, B.T, A.T  # compiled loops need C by rows
        if self.int8_engine is not None:
            memory = self._emulation_memory
            return by_tiles.subtract_product(self._team, self.int8_engine, memory, C, A, B, self._subtract)
        counts = [Emulation()] * self.threads
        self._team.run(by_sgemm.subtract_part, self.threads, C, A, B, counts)
        return sum(counts, Emulation())

    def solve_upper(self, U: Array, x: Array) -> None:
        triangle.solve_upper(U, x, False)

    def block_solver(self, T: Array, part: str) -> BlockSolver:
        solve_vector = triangle.solve_upper if part == "upper" else triangle.solve_lower

        def solve(x: Array, *, transposed: bool = False) -> None:
            if x.ndim == 1:
                solve_vector(T, x, transposed)
            else:
                self._team.run(self._solve_columns, T.astype(np.float64, copy=False), x, part == "lower", transposed)

        return solve

    def _solve_columns(self, tid: int, T: Array, X: Array, lower: bool, transposed: bool) -> None:
        """Solve with T or T^T in place, for the columns of X that belong to thread `tid`."""
        columns = X.shape[1]
        part = slice(columns * tid // self.threads, columns * (tid + 1) // self.threads)
        blas.solve_triangle(T, X[:, part], lower=lower, transposed=transposed)

    def add_matvec(self, y: Array, A: Array, x: Array, *, transposed: bool = False) -> None:
        if y.ndim == 1:
            self._team.run(triangle.add_matvec, self.threads, y, A, x, transposed)
        elif y.shape[1] <= FEW:
            for j in range(y.shape[1]):
                x_j, y_j = np.ascontiguousarray(x[:, j]), np.ascontiguousarray(y[:, j])
                self._team.run(triangle.add_matvec, self.threads, y_j, A, x_j, transposed)
                y[:, j] = y_j
        else:
            self._team.run(self._add_product_part, y, A.T if transposed else A, x)

    def _add_product_part(self, tid: int, Y: Array, A: Array, X: Array) -> None:
        """Compute Y += A X for the rows that belong to thread `tid`. An fp32 A is converted to fp64 block by block."""
        first, end = (len(Y) * part // self.threads for part in (tid, tid + 1))
        if A.dtype == np.float64:
            blas.gemm(1.0, A[first:end], X, Y[first:end])
            return
        width = min(WIDTH, A.shape[1])
        height = WIDENED // max(1, width)
        for begin, c0 in product(range(first, end, height), range(0, A.shape[1], WIDTH)):
            rows, columns = slice(begin, min(begin + height, end)), slice(c0, c0 + WIDTH)
            blas.gemm(1.0, A[rows, columns].astype(np.float64), X[columns], Y[rows])

    def add_two_matvecs(self, y: Array, z: Array, A: Array, u: Array, v: Array) -> None:
        self._team.run(row_sums.add_two_matvecs, self.threads, y, z, A, u, v)

    def add_operand_sums(self, sums: Array, A: Array, precision: str, vectors: Array, part: str = "all") -> None:
        which, form = row_sums.PARTS[part], cast.FORMATS.get(precision)
        if len(vectors) == 1 and precision != "bf16":
            (w,) = vectors
            vectors = np.stack([w, np.zeros_like(w), w, np.ones_like(w)])
        if form is None:  # no operand is rounded
            u, v, w, q = vectors
            self._team.run(row_sums.add_stored_sums, self.threads, sums, A, np.stack([u + v, w, q]), which)
            return
        with np.errstate(over="ignore"):
            if len(vectors) == 1:
                narrow = vectors.astype(np.float32)
                self._team.run(row_sums.add_rounded_sums, self.threads, sums, A, narrow, vectors, form, which)
                return
            wide, (_, exponent) = vectors.copy(), np.frexp(np.max(np.abs(vectors[3]), initial=0.0))
            squares = sums[2 : 6 if part == "upper" else 3 : 3]
            for weights in (wide[3], squares):  # otherwise squares of small entries would underflow in fp32
                np.ldexp(weights, -exponent, out=weights)
            narrow = wide.astype(np.float32)
            self._team.run(row_sums.add_rounded_sums, self.threads, sums, A, narrow, wide, form, which)
            np.ldexp(squares, exponent, out=squares)

    def add_triangle_matvec(
        self, y: Array, A: Array, x: Array, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        distribution, lower = _distribution(rows, cols), part == "lower"
        self._team.run(triangle.add_triangle_matvec, self.threads, y, A, x, distribution, lower, triangle.FORMS[form])

    def add_scaled(self, y: Array, factor: float, x: Array) -> None:
        with np.errstate(all="ignore"):
            y += factor * x

    def abs_sums(self, A: Array, by_row: Array, by_column: Array) -> None:
        parts = self.matrix(self.threads, A.shape[1])
        self._team.run(triangle.abs_sums, self.threads, A, by_row, parts)
        np.sum(parts, axis=0, out=by_column)

    def sum_squares(self, x: Array) -> float:
        with np.errstate(all="ignore"):
            return float(np.dot(x, x))

    def max_abs_upper(self, A: Array, rows: BlockCyclic, cols: BlockCyclic) -> float:
        best = np.zeros(self.threads)
        self._team.run(triangle.max_abs_upper, self.threads, best, A, _distribution(rows, cols))
        return float(np.max(best))

    def row_max(self, A: Array, by_row: Array) -> None:
        self._team.run(triangle.row_max, self.threads, A, by_row)

    def column_max(self, A: Array, by_column: Array) -> None:
        self._team.run(triangle.column_max, self.threads, A, by_column)

    def reciprocal_powers(self, powers: Array, x: Array) -> None:
        usable = np.isfinite(x) & (x > 0)
        powers[:] = 1.0
        mantissa, exponent = np.frexp(x[usable])  # x = mantissa · 2^exponent, mantissa in [1/2, 1)
        powers[usable] = np.ldexp(1.0, np.where(mantissa == 0.5, 1, 0) - exponent)

    def scale_rows_columns(self, A: Array, by_row: Array, by_column: Array) -> None:
        self._team.run(triangle.scale_rows_columns, self.threads, A, by_row, by_column)

    def combine_rows(self, X: Array, Y: Array, r: Array, s: Array) -> None:
        self._team.run(triangle.combine_rows, self.threads, X, Y, r, s)

    def combine_columns(self, X: Array, Y: Array, r: Array, s: Array) -> None:
        self._team.run(triangle.combine_columns, self.threads, X, Y, r, s)
