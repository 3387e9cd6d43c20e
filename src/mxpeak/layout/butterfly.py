"""The pairs of indices that the layers of a recursive butterfly combine, for any order n and depth d.

The layer with half-length h combines index i with index i + h, where i // h is even. The half-lengths of d layers are
h, 2h, …, 2^(d-1)·h with h = ceil(n / 2^d). If n is not a multiple of 2^d, the last butterflies are cut off at n, and an
index without a partner is unchanged. The layers are truncated in this way in Lindquist, Luszczek and Dongarra,
"Generalizing random butterfly transforms to arbitrary matrix sizes", ACM Trans. Math. Softw. 50, 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mxpeak.layout.block_cyclic import BlockCyclic


@dataclass(frozen=True, slots=True)
class Pairs:
    """The `count` pairs (upper + k, lower + k) of global indices; each of the two ranges is within one block."""

    upper: int
    lower: int
    count: int


def half_lengths(n: int, depth: int) -> list[int]:
    """Return the half-lengths of the layers of a butterfly of order n, in increasing order."""
    shortest = -(-n // 2**depth)
    return [shortest << layer for layer in range(depth)]


def has_partner(n: int, h: int, i: Any) -> Any:
    """Return whether the layer with half-length h combines index i, or each index of an array, with another index."""
    return (i // h % 2 == 1) | (i + h < n)


def pairs(n: int, h: int, nb: int) -> Iterator[Pairs]:
    """Yield all pairs of the layer with half-length h, in increasing order, cut at multiples of NB."""
    for begin in range(0, n - h, 2 * h):
        i, end = begin, min(begin + h, n - h)
        while i < end:
            count = min(end - i, nb - i % nb, nb - (i + h) % nb)
            yield Pairs(i, i + h, count)
            i += count


@dataclass(frozen=True, slots=True)
class LocalPairs:
    """The pairs of one layer in which a process takes part, with its local ranges.

    local    ranges (upper, lower) of pairs that are both on this process
    remote   by partner process: ranges of this process, and whether they are the upper ones; the partner lists the
             ranges with which it answers in the same order
    """

    local: list[tuple[slice, slice]]
    remote: dict[int, list[tuple[slice, bool]]]


def local_pairs(along: BlockCyclic, h: int) -> LocalPairs:
    """Return the pairs of the layer with half-length h in which process p of `along` takes part."""
    own = LocalPairs([], {})
    for pair in pairs(along.n, h, along.nb):
        owners = along.owner(pair.upper), along.owner(pair.lower)
        upper, lower = (_range(along, begin, pair.count) for begin in (pair.upper, pair.lower))
        if owners == (along.p, along.p):
            own.local.append((upper, lower))
        elif along.p in owners:
            is_upper = owners[0] == along.p
            own.remote.setdefault(owners[is_upper], []).append((upper if is_upper else lower, is_upper))
    return own


def _range(along: BlockCyclic, begin: int, count: int) -> slice:
    first = along.to_local(begin)
    return slice(first, first + count)
