"""Generation of HPL's matrix: jump to a block, then one 64-bit multiply-add and one conversion an entry."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.jit import INT, MATRIX, WORDS, jit
from mxpeak.kernels.host.native import row


@jit(INT, INT, MATRIX, INT, WORDS, WORDS, WORDS, WORDS)
def lcg_fill(tid, threads, out, nb, to_block, a_table, c_table, starts):
    """out[il, jl] = 1/2 - X/2^64 for the blocks of columns that this rank owns, rows shared among the threads.

    starts[il]           X of the rank's first entry in local row il
    a_table, c_table     the jumps by 0 … NB-1 columns
    to_block             the jump from one own block of columns to the next, as (A, C)
    """
    rows, columns = out.shape
    A_block, C_block = to_block[0], to_block[1]
    for il in range(rows * tid // threads, rows * (tid + 1) // threads):
        x = starts[il]
        for j0 in range(0, columns, nb):
            block = row(out, il, j0, min(j0 + nb, columns))
            for j in range(block.shape[0]):
                block[j] = 0.5 - np.float64(a_table[j] * x + c_table[j]) * 5.421010862427522e-20
            x = A_block * x + C_block
