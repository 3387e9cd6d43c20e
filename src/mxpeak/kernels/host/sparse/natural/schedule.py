"""Schedule a natural-order sweep over threads.

A unit is a sequence of rows and belongs to one thread. Each thread processes its units in the order of the sweep and
publishes its progress. If a unit has entries in columns of other threads' units, its thread first waits for those
units (Park et al., Sparsifying Synchronization for High-Performance Shared-Memory Sparse Triangular Solver, ISC 2014).
The pattern must be symmetric, so that no thread overwrites an x that another thread has yet to read. The result does
not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import SPINS, atomic_load, atomic_store, call_at, piece

#: Distance between the progress counters of two threads, so that each has its own cache line.
APART = 8
#: A thread publishes its progress after this many units, because the next read by another thread fetches the progress
#: from its core. On a Xeon, sweeps over packed values of 64^3 and 104^3 take the same time with 1 and 2. With 1,
#: sweeps over fp32 values of 32^3 take 7 to 11 % longer.
EVERY = 2
#: Cost of reading the x of another thread's unit from the cache of another core, as a share of that unit's time. Two
#: threads can share every plane or process alternate planes. On a Xeon, shared planes change the time of a sweep by
#: -29 % for packed bf16 at 192^3, by -10 % for fp32 at 64^3, and by +10 % at 32^3, where a plane has 7 units.
ELSEWHERE = 1 / 32


class Schedule(NamedTuple):
    """The units first … end-1 of one sweep, their threads and their dependences, as compiled code receives them.

    progress        for each thread, the number of its next unit, counted in the direction of the sweep
    owner           the thread of each unit
    needs           the progress of every thread that a unit requires, or 0 if it need not be checked
    yield_address   the address of sched_yield
    """

    progress: Any
    owner: Any
    needs: Any
    first: int
    end: int
    yield_address: int


@inner()
def wait(tid, threads, schedule, u, done):
    """Wait until every other thread has reached the progress that unit u needs.

    Before it waits, this thread publishes its own progress, `done`.
    """
    for s in range(threads):
        need, spins = np.int64(schedule.needs[u, s]), 0
        while s != tid and need > 0 and atomic_load(schedule.progress, s * APART) < need:
            if spins == 0:
                publish(schedule, tid, done)
            spins += 1
            if spins > SPINS:
                call_at(schedule.yield_address)


@inner(inline=True)
def publish(schedule, tid, done):
    """Store this thread's progress where the other threads read it."""
    atomic_store(schedule.progress, tid * APART, done)


@inner(inline=True)
def publish_sometimes(schedule, tid, done, last):
    """Publish this thread's progress if `last` or if `done` is a multiple of EVERY.

    `last` means that the next unit belongs to another thread or does not exist.
    """
    if last or done % EVERY == 0:
        publish(schedule, tid, done)


@jit(allocates=True)
def unit_edges(tid, threads, rows, unit_first_row, unit_of, first_edge, count, edges):
    """Find the earlier units in whose columns each of this thread's units has entries.

    count[u] becomes the number of these units for unit u, and `edges` receives the units. The edges of a thread's
    units begin at edges[first_edge[tid]].
    """
    n, units = rows.new_to_old.shape[0], count.shape[0]
    seen, at = np.full(units, -1, np.int64), first_edge[tid]
    for u in range(units * tid // threads, units * (tid + 1) // threads):
        begin, row0, last = at, unit_first_row[u], -1
        for r in range(row0, unit_first_row[u + 1]):
            i = rows.new_to_old[r]
            row = piece(rows.indices, rows.indptr[i], rows.indptr[i + 1] - rows.indptr[i])
            for k in range(row.shape[0]):
                if row[k] < n:
                    column = np.uint32(rows.old_to_new[np.uint32(row[k])])
                    if column < row0:
                        v = np.int64(unit_of[column])
                        if v != last and seen[v] != u:
                            seen[v] = u
                            edges[at] = v
                            at += 1
                        last = v
        count[u] = at - begin


@jit(allocates=True)
def find_needs(first, edges, owner, forward, backward):
    """Compute the progress of every thread that each unit needs, for a forward sweep and for a backward sweep.

    If the unit's thread has already waited for this progress, 0 is stored, because each check moves a cache line
    between cores.
    """
    count = owner.shape[0]
    for u in range(count):
        for e in range(first[u], first[u + 1]):
            v = edges[e]
            forward[u, owner[v]] = max(forward[u, owner[v]], v + 1)
            backward[v, owner[u]] = max(backward[v, owner[u]], count - u)
    threads = forward.shape[1]
    seen, seen_back = np.zeros((threads, threads), np.int32), np.zeros((threads, threads), np.int32)
    for u in range(count):
        _drop_seen(forward[u], seen[owner[u]])
        _drop_seen(backward[count - 1 - u], seen_back[owner[count - 1 - u]])


@inner()
def _drop_seen(needs, seen):
    """Set the progress that a unit needs to 0 if its thread has already waited for it, and update `seen`."""
    for s in range(needs.shape[0]):
        if needs[s] <= seen[s]:
            needs[s] = 0
        seen[s] = max(seen[s], needs[s])


@jit(allocates=True)
def makespan(first, edges, owner, cost, threads):
    """Return an estimate of the time of a sweep in units of `cost`.

    The estimate includes ELSEWHERE times the cost of each unit whose x is read from another core.
    """
    count, free, done = owner.shape[0], np.zeros(threads), np.zeros(owner.shape[0])
    for u in range(count):
        begin, extra = free[owner[u]], 0.0
        for e in range(first[u], first[u + 1]):
            v = edges[e]
            begin = max(begin, done[v])
            extra += cost[v] * ELSEWHERE if owner[v] != owner[u] else 0.0
        done[u] = begin + cost[u] + extra
        free[owner[u]] = done[u]
    return free.max() if count else 0.0


Array = np.ndarray[Any, np.dtype[Any]]


def shares(threads: int, cost: Array, first: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Assign units to threads with the smallest makespan, and return the owners and the needs of both sweeps.

    Unit u has a cost and needs the earlier units edges[first[u]:first[u+1]]. The needs are those of `find_needs`. A
    run of units ends before a unit that does not need the previous unit, as at the planes of a mesh. Some candidates
    split every run among the threads, so that most of the data that a thread reads is in its cache. The others
    distribute blocks of units or entire runs round-robin.
    """
    count = cost.size
    owner = np.zeros(count, np.int32)
    if threads == 1 or count < threads:
        return owner, np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
    follows = np.zeros(count, bool)
    follows[edges[edges == np.repeat(np.arange(count), np.diff(first)) - 1] + 1] = True
    units, runs, begins = np.arange(count), np.cumsum(~follows) - 1, np.flatnonzero(~follows)
    length, candidates, size = np.diff(np.append(begins, count)), [owner], 1
    while size * threads <= count:
        parts = (units - begins[runs]) * threads * size // length[runs]
        candidates += [(blocks % threads).astype(np.int32) for blocks in (parts, units // size, runs // size)]
        size *= 2
    best = min(candidates, key=lambda candidate: makespan(first, edges, candidate, cost, threads))
    forward, backward = np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
    find_needs(first, edges, best, forward, backward)
    return best, forward, backward
