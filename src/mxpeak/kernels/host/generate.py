"""Generation of HPL's matrix: jump to a block, then one 64-bit multiply-add and one conversion an entry."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.jit import INT, MATRIX, WORDS, jit
from mxpeak.kernels.host.native import column


@jit(INT, INT, MATRIX, INT, WORDS, WORDS, WORDS, WORDS)
def lcg_fill(tid, threads, out, nb, to_block, a_table, c_table, starts):
    """out[il, jl] = 1/2 - X/2^64 for the blocks of rows that this rank owns, columns shared among the threads.

    starts[jl]           X of the rank's first entry in local column jl
    a_table, c_table     the jumps by 0 … NB-1 within a block
    to_block             the jump from one own block of rows to the next, as (A, C)
    """
    rows, columns = out.shape
    A_block, C_block = to_block[0], to_block[1]
    for jl in range(columns * tid // threads, columns * (tid + 1) // threads):
        x = starts[jl]
        for i0 in range(0, rows, nb):
            block = column(out, jl, i0, min(i0 + nb, rows))
            for i in range(block.shape[0]):
                block[i] = 0.5 - np.float64(a_table[i] * x + c_table[i]) * 5.421010862427522e-20
            x = A_block * x + C_block
