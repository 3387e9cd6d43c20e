"""The 27-point problem's rows, and independent sets of any sparse matrix's rows, in compiled code.

Rows are compressed (indptr, indices, data); column n + h is entry h of what comes from other ranks.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import atomic_add, bits_of, piece
from mxpeak.layout.stencil import STENCIL


@jit()
def stencil_counts(tid, threads, box, first, indptr):
    """indptr[1 + i] = entries of row i: (3 - sides without a neighbour) multiplied over the three directions.

    box = nx, ny, nz, gnx, gny, gnz; first = the global coordinates of the first point.
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
    """How many of x-1, x, x+1 lie in 0 … end-1."""
    return 1 + (1 if x > 0 else 0) + (1 if x + 1 < end else 0)


@jit()
def stencil_rows(tid, threads, box, first, halo, weights, indptr, indices, data):
    """Fill in the columns and values of the rows, neighbours in the order of their global numbers.

    halo[d] = (offset, x0, y0, z0, width, height) of direction d = (dx+1) + 3(dy+1) + 9(dz+1): the point (x, y, z)
    outside of the box is halo entry offset + ((z - z0)·height + y - y0)·width + x - x0.  weights[d] is the stencil.
    """
    nx, ny, nz = box[0], box[1], box[2]
    for z in range(nz * tid // threads, nz * (tid + 1) // threads):
        for y in range(ny):
            inside = 0 < y < ny - 1 and 0 < z < nz - 1
            for x in range(nx):
                i = (z * ny + y) * nx + x
                at = indptr[i]
                if inside and 0 < x < nx - 1:  # all neighbours are in the box
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
    nx, ny, nz = box[0], box[1], box[2]
    sx, sy, sz = _side(x, nx), _side(y, ny), _side(z, nz)
    if sx == 0 and sy == 0 and sz == 0:
        return (z * ny + y) * nx + x
    h = halo[sx + 1 + 3 * (sy + 1) + 9 * (sz + 1)]
    return nx * ny * nz + h[0] + ((z - h[3]) * h[5] + y - h[2]) * h[4] + x - h[1]


@inner(inline=True)
def _side(x, end):
    """-1 before 0, 1 from `end` on, else 0."""
    return -1 if x < 0 else (1 if x >= end else 0)


@jit(allocates=True)
def greedy_colours(indptr, indices, n, colour):
    """colour[i] = the least that no neighbour with a smaller number has (Saad, section 3.3.3); returns how many.

    The pattern has to be symmetric.
    """
    used = np.full(n + 1, -1, np.int64)
    most = 0
    for i in range(n):
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < i:
                used[colour[j]] = i
        c = 0
        while used[c] == i:
            c += 1
        colour[i] = c
        most = max(most, c + 1)
    return most


@jit()
def levels(indptr, indices, n, level):
    """level[i] = 1 + the largest of neighbours with a smaller number, 0 without any; returns how many there are.

    Rows of one level are independent, and taking level after level gives what row after row would.
    """
    most = 0
    for i in range(n):
        found = 0
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < i:
                found = max(found, level[j] + 1)
        level[i] = found
        most = max(most, found + 1)
    return most


@inner(inline=True)
def _weight(i):
    """A number without order: the same of a row wherever it is asked for (splitmix64)."""
    z = np.uint64(i) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit(allocates=True)
def jpl_round(tid, threads, indptr, indices, n, longest, colour, before, left):
    """One round of Jones, Plassmann and Luby: rows that outweigh all uncoloured neighbours take the least free colour.

    `before` is colour as the round found it, -1 where there is none; left[tid] = rows of this thread still without one.
    No row has more than `longest` entries, so no colour needs to be larger.
    """
    mine, used = 0, np.full(longest + 1, -1, np.int64)
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
            mine += 1
            continue
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and j != i and 0 <= before[j] <= longest:
                used[before[j]] = i
        c = 0
        while used[c] == i:
            c += 1
        colour[i] = c
    left[tid] = mine


@jit(allocates=True)
def group_rows(group, groups, new_to_old, starts):
    """Sort rows by group, as they stood inside of one: new_to_old[new] = old; starts[g] = the first of group g."""
    n = group.shape[0]
    count = np.zeros(groups + 1, np.int64)
    for i in range(n):
        count[group[i] + 1] += 1
    starts[0] = 0
    for g in range(groups):
        count[g + 1] += count[g]
        starts[g + 1] = count[g + 1]  # one by one: to copy arrays that might overlap takes seconds to compile
    for i in range(n):
        new_to_old[count[group[i]]] = i
        count[group[i]] += 1


@jit()
def touches_halo(tid, threads, indptr, indices, n, surface):
    """surface[i] = whether row i has an entry from another rank."""
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        surface[i] = False
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] >= n:
                surface[i] = True


@jit()
def columns_descend(tid, threads, indptr, indices, n, found):
    """found[tid] = 1 if in some of this thread's rows a column is below the one before it."""
    found[tid] = 0
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        for k in range(indptr[i] + 1, indptr[i + 1]):
            if indices[k] < indices[k - 1]:
                found[tid] = 1
                return


@jit()
def bandwidth(tid, threads, indptr, indices, n, apart):
    """apart[tid] = the largest |i - j| of a local entry of this thread's rows."""
    most = 0
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] < n:
                most = max(most, abs(i - indices[k]))
    apart[tid] = most


@jit()
def pattern_is_symmetric(tid, threads, indptr, indices, n, found):
    """found[tid] = 1 if some local entry (i, j) of this thread's rows has no (j, i); columns of a row ascend."""
    found[tid] = 0
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and not _has(indptr, indices, j, i):
                found[tid] = 1
                return


@jit()
def count_partners(tid, threads, indptr, indices, n, missing):
    """missing[j] += how many entries (i, j) of this thread's rows have no (j, i)."""
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and not _has(indptr, indices, j, i):
                atomic_add(missing, j, 1)


@jit()
def fill_partners(tid, threads, indptr, indices, n, at, columns):
    """columns[at[j]] = i of each such entry, whichever thread comes first; at[j] goes on to the next."""
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and not _has(indptr, indices, j, i):
                columns[atomic_add(at, j, 1)] = i


@jit(allocates=True)
def merge_rows(tid, threads, indptr, indices, data, n, first, columns, to, out_indices, out_data):
    """Each row with zeros in its partners' columns, which are columns[first[i]] … columns[first[i+1]-1]; in order."""
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        k, s, at = indptr[i], first[i], to[i]
        partners = columns[s : first[i + 1]]
        partners.sort()
        while at < to[i + 1]:
            if s == first[i + 1] or (k < indptr[i + 1] and indices[k] < columns[s]):
                out_indices[at], out_data[at] = indices[k], data[k]
                k += 1
            else:
                out_indices[at], out_data[at] = columns[s], 0.0
                s += 1
            at += 1


@inner()
def _has(indptr, indices, i, j):
    low, high = indptr[i], indptr[i + 1]
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < j:
            low = middle + 1
        else:
            high = middle
    return low < indptr[i + 1] and indices[low] == j


@jit()
def to_bf16(tid, threads, a, out):
    """out = a in bf16, rounded to nearest even, once.

    First to fp32 by cutting off, with the last bit set where something was lost: it decides what looks like a tie.
    Without branches, so in vector instructions: an overflow to infinity is taken back to the largest number, rounds up
    again, and what is no number stays none.
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
    """worst[tid] = the largest |near_i - a_i| / |a_i| so far, inf where near_i is no number."""
    n, most = a.shape[0], worst[tid]
    for i in range(n * tid // threads, n * (tid + 1) // threads):
        if near[i] != a[i]:
            error = abs(near[i] - a[i]) / abs(a[i])
            most = max(most, error) if error == error else np.inf
    worst[tid] = most
