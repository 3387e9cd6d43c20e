"""Compute with compressed rows: the 27-point problem, patterns, colors, levels, the diagonal D and the halo part H.

Rows are a `kernels.contract.sparse.Rows`; column n + h is entry h of the halo.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import atomic_add, bits_of, piece
from mxpeak.layout.stencil import STENCIL


class OrderedRows(NamedTuple):
    """The pattern of compressed rows and a permutation of the rows, as compiled code receives them."""

    new_to_old: Any
    old_to_new: Any
    indptr: Any
    indices: Any


class Halo(NamedTuple):
    """The part H of a matrix in columns of other ranks: its rows, the first entry of each row, and its columns.

    Column 0 is the first entry of the halo.
    """

    rows: Any
    first: Any
    columns: Any


@jit()
def stencil_counts(tid, threads, box, first, indptr):
    """Store the number of entries of row i of the 27-point matrix in indptr[1 + i], for this thread's planes.

    The number is the product of 3 - (missing neighbors) over the three directions. `box` is (nx, ny, nz, gnx, gny,
    gnz), the local and the global size; `first` contains the global coordinates of the first point.
    """
    nx, ny, nz = box[0], box[1], box[2]
    for z in range(nz * tid // threads, nz * (tid + 1) // threads):
        deep = _around(first[2] + z, box[5])
        for y in range(ny):
            flat = deep * _around(first[1] + y, box[4])
            for x in range(nx):
                indptr[1 + (z * ny + y) * nx + x] = flat * _around(first[0] + x, box[3])


@inner(inline=True)
def _around(x, end):
    """Return how many of the points x-1, x and x+1 are in 0 … end-1, for an x in this range."""
    return 1 + (1 if x > 0 else 0) + (1 if x + 1 < end else 0)


@jit()
def stencil_rows(tid, threads, box, first, halo, weights, indptr, indices, data):
    """Store the columns and values of the 27-point matrix, with neighbors in the order of their global numbers.

    For direction d = (dx+1) + 3(dy+1) + 9(dz+1), halo[d] is (offset, x0, y0, z0, width, height), and weights[d] is the
    entry for the neighbor in this direction. A point (x, y, z) outside the box is the halo entry with the index

        offset + ((z - z0)·height + y - y0)·width + x - x0
    """
    nx, ny, nz = box[0], box[1], box[2]
    for z in range(nz * tid // threads, nz * (tid + 1) // threads):
        for y in range(ny):
            inside = 0 < y < ny - 1 and 0 < z < nz - 1
            for x in range(nx):
                i = (z * ny + y) * nx + x
                at = indptr[i]
                if inside and 0 < x < nx - 1:  # all neighbors are in the box
                    columns, values = piece(indices, at, STENCIL), piece(data, at, STENCIL)
                    for d in range(STENCIL):
                        columns[d] = i + d % 3 - 1 + nx * (d // 3 % 3 - 1 + ny * (d // 9 - 1))
                        values[d] = weights[d]
                    continue
                for dz in range(-1, 2):
                    if not 0 <= first[2] + z + dz < box[5]:
                        continue
                    for dy in range(-1, 2):
                        if not 0 <= first[1] + y + dy < box[4]:
                            continue
                        for dx in range(-1, 2):
                            if not 0 <= first[0] + x + dx < box[3]:
                                continue
                            indices[at] = _column(box, halo, x + dx, y + dy, z + dz)
                            data[at] = weights[dx + 1 + 3 * (dy + 1) + 9 * (dz + 1)]
                            at += 1


@inner(inline=True)
def _column(box, halo, x, y, z):
    """Return the column of the point (x, y, z). If the point is outside the box, it is a column of the halo."""
    nx, ny, nz = box[0], box[1], box[2]
    sx, sy, sz = _side(x, nx), _side(y, ny), _side(z, nz)
    if sx == 0 and sy == 0 and sz == 0:
        return (z * ny + y) * nx + x
    h = halo[sx + 1 + 3 * (sy + 1) + 9 * (sz + 1)]
    return nx * ny * nz + h[0] + ((z - h[3]) * h[5] + y - h[2]) * h[4] + x - h[1]


@inner(inline=True)
def _side(x, end):
    """Return -1 if x is negative, 1 if x >= end, and 0 otherwise."""
    return -1 if x < 0 else (1 if x >= end else 0)


@jit(allocates=True)
def greedy_colors(rows, color):
    """Assign to each row the smallest color that no earlier neighbor has, and return the number of colors.

    This is greedy coloring (Saad, section 3.3.3). The pattern must be symmetric.
    """
    used = np.full(rows.n + 1, -1, np.int64)
    colors = 0
    for i in range(rows.n):
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            j = rows.indices[k]
            if j < i:
                used[color[j]] = i
        c = 0
        while used[c] == i:
            c += 1
        color[i] = c
        colors = max(colors, c + 1)
    return colors


@jit()
def levels(rows, level):
    """Store the level of each row, and return the number of levels.

    level[i] is 1 + the highest level of the earlier neighbors, or 0 if row i has no earlier neighbor. Rows of one
    level are independent, and a sweep over the levels computes the same result as a sweep over the rows.
    """
    count = 0
    for i in range(rows.n):
        own = 0
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            j = rows.indices[k]
            if j < i:
                own = max(own, level[j] + 1)
        level[i] = own
        count = max(count, own + 1)
    return count


@inner(inline=True)
def _weight(i):
    """Return a pseudo-random weight that depends only on the row index i (splitmix64)."""
    z = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit(allocates=True)
def jpl_round(tid, threads, rows, longest, color, before, uncolored):
    """Assign the smallest free color to each row that outweighs all uncolored neighbors (Jones, Plassmann and Luby).

    `before` is the color of each row before this round, or -1. uncolored[tid] receives the number of this thread's
    rows without a color after the round. No row has more than `longest` entries, so no color is larger.
    """
    n, indptr, indices = rows.n, rows.indptr, rows.indices
    waiting, used = 0, np.full(longest + 1, -1, np.int64)
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        if before[i] >= 0:
            continue
        heaviest, weight = True, _weight(i)
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and j != i and before[j] < 0 and _weight(j) > weight:
                heaviest = False
                break
        if not heaviest:
            waiting += 1
            continue
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and j != i and 0 <= before[j] <= longest:
                used[before[j]] = i
        c = 0
        while used[c] == i:
            c += 1
        color[i] = c
    uncolored[tid] = waiting


@jit(allocates=True)
def group_rows(group, groups, new_to_old, starts):
    """Sort the rows by group with a stable sort, so that new_to_old[new] = old.

    starts[g] becomes the first new row of group g.
    """
    n = group.shape[0]
    count = np.zeros(groups + 1, np.int64)
    for i in range(n):
        count[group[i] + 1] += 1
    starts[0] = 0
    for g in range(groups):
        count[g + 1] += count[g]
        starts[g + 1] = count[g + 1]  # a copy of arrays that might overlap takes seconds to compile
    for i in range(n):
        new_to_old[count[group[i]]] = i
        count[group[i]] += 1


@jit()
def touches_halo(tid, threads, rows, surface):
    """Store in surface[i] whether row i has an entry in the halo, for this thread's rows."""
    for i in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        surface[i] = False
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            if rows.indices[k] >= rows.n:
                surface[i] = True


@jit()
def columns_descend(tid, threads, indptr, indices, n, flags):
    """Set flags[tid] to 1 if the columns of one of this thread's rows are not in ascending order, otherwise to 0."""
    flags[tid] = 0
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        for k in range(indptr[i] + 1, indptr[i + 1]):
            if indices[k] < indices[k - 1]:
                flags[tid] = 1
                return


@jit()
def bandwidth(tid, threads, rows, distance):
    """Store in distance[tid] the largest |i - j| over the local entries in this thread's rows."""
    largest = 0
    for i in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            if rows.indices[k] < rows.n:
                largest = max(largest, abs(i - rows.indices[k]))
    distance[tid] = largest


@jit()
def pattern_is_unsymmetric(tid, threads, rows, flags):
    """Set flags[tid] to 1 if a local entry (i, j) of this thread's rows has no partner (j, i), otherwise to 0.

    The columns of each row must ascend.
    """
    flags[tid] = 0
    for i in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            j = rows.indices[k]
            if j < rows.n and not _has(rows, j, i):
                flags[tid] = 1
                return


@jit()
def find_partners(tid, threads, rows, at, columns):
    """Count the local entries (i, j) without a partner (j, i) in at[j], or store their rows i.

    The counter at[j] is incremented for each such entry in this thread's rows. Unless `columns` is empty, i is stored
    in columns[at[j]] before the increment.
    """
    for i in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            j = rows.indices[k]
            if j < rows.n and not _has(rows, j, i):
                place = atomic_add(at, j, 1)
                if columns.shape[0]:
                    columns[place] = i


@jit(allocates=True)
def merge_rows(tid, threads, rows, first, columns, merged):
    """Store this thread's rows in `merged`, sorted, with additional zeros.

    The zeros of row i are in the columns columns[first[i]] … columns[first[i+1]-1].
    """
    for i in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        k, s, at = rows.indptr[i], first[i], merged.indptr[i]
        partners = columns[s : first[i + 1]]
        partners.sort()
        while at < merged.indptr[i + 1]:
            if s == first[i + 1] or (k < rows.indptr[i + 1] and rows.indices[k] < columns[s]):
                merged.indices[at], merged.data[at] = rows.indices[k], rows.data[k]
                k += 1
            else:
                merged.indices[at], merged.data[at] = columns[s], 0.0
                s += 1
            at += 1


@inner()
def _has(rows, i, j):
    """Return whether row i has an entry in column j, by binary search."""
    low, high = rows.indptr[i], rows.indptr[i + 1]
    while low < high:
        middle = (low + high) // 2
        if rows.indices[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low < rows.indptr[i + 1] and rows.indices[low] == j


@jit()
def diagonal_of(tid, threads, new_to_old, rows, diagonal):
    """Store the diagonal of the matrix in the new order, for this thread's rows."""
    for r in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        i = new_to_old[r]
        k = (rows.indptr[i] + rows.indptr[i + 1]) // 2  # the position of the diagonal in a stencil
        if k < rows.indptr[i + 1] and rows.indices[k] == i:
            diagonal[r] = rows.data[k]
            continue
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            if rows.indices[k] == i:
                diagonal[r] = rows.data[k]
                break


@jit()
def count_parts(tid, threads, rows, lower, upper, youngest):
    """Store the numbers of entries of L and of U in each new row, and the last column of L.

    youngest[r] becomes the last column of L in row r, or -1 if the row has no entry in L.
    """
    new_to_old, old_to_new, indptr, indices = rows
    n = new_to_old.shape[0]
    for r in range(n * tid // threads, n * (tid + 1) // threads):
        i, before, after, last = new_to_old[r], 0, 0, np.int32(-1)
        row = piece(indices, indptr[i], indptr[i + 1] - indptr[i])
        for k in range(row.shape[0]):  # without branches, so that the loop vectorizes
            column = old_to_new[np.uint32(row[k])] if row[k] < n else np.int32(r)
            before += column < r
            after += column > r
            last = max(last, column if column < r else np.int32(-1))
        lower[r], upper[r], youngest[r] = before, after, last


@jit()
def count_halo(new_to_old, surface, rows, halo_rows):
    """Store the new numbers of the rows that have entries in H, and return the numbers of these rows and entries."""
    size, entries = 0, 0
    for r in range(rows.n):
        if surface[new_to_old[r]]:
            halo_rows[size] = r
            size += 1
            for k in range(rows.indptr[new_to_old[r]], rows.indptr[new_to_old[r] + 1]):
                entries += 1 if rows.indices[k] >= rows.n else 0
    return size, entries


@jit()
def halo_entries(new_to_old, rows, halo, values):
    """Store the first entry of each row of H, and the columns and values of all its entries."""
    at = 0
    for s in range(halo.rows.shape[0]):
        i = new_to_old[halo.rows[s]]
        halo.first[s] = at
        for k in range(rows.indptr[i], rows.indptr[i + 1]):
            if rows.indices[k] >= rows.n:
                halo.columns[at], values[at] = rows.indices[k] - rows.n, rows.data[k]
                at += 1
    halo.first[halo.rows.shape[0]] = at


@jit()
def row_sums(tid, threads, new_to_old, rows, sums):
    """Store the row sums Σ_j a_ij in the new order, for this thread's rows."""
    for r in range(rows.n * tid // threads, rows.n * (tid + 1) // threads):
        total = 0.0
        for k in range(rows.indptr[new_to_old[r]], rows.indptr[new_to_old[r] + 1]):
            total += rows.data[k]
        sums[r] = total


@jit()
def to_bf16(tid, threads, a, out):
    """Round this thread's part of a to bf16, to nearest even, with a single rounding.

    The truncation to fp32 sets the last bit if the value was inexact, so that an inexact value is not treated as a
    tie. The code has no branches, so that it vectorizes. An overflow to infinity first becomes the largest number and
    then rounds up again. NaN stays NaN.
    """
    begin, end = a.shape[0] * tid // threads, a.shape[0] * (tid + 1) // threads
    a, out = piece(a, begin, end - begin), piece(out, begin, end - begin)
    for i in range(a.shape[0]):
        near = np.float32(a[i])
        lost, over = np.uint32(np.float64(near) != a[i]), np.uint32(abs(np.float64(near)) > abs(a[i]))
        bits = np.uint32(np.uint32(bits_of(near) - over) | lost)
        up = np.uint32(np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
        out[i] = np.int16(np.uint32(bits + (up if near == near else np.uint32(0))) >> np.uint32(16))


@jit()
def largest_error(tid, threads, a, near, worst):
    """Raise worst[tid] to the largest |near_i - a_i| / |a_i|, or to inf if some near_i is NaN."""
    n, largest = a.shape[0], worst[tid]
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        if near[i] != a[i]:
            error = abs(near[i] - a[i]) / abs(a[i])
            largest = max(largest, error) if error == error else np.inf
    worst[tid] = largest
