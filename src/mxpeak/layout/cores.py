"""The cores of one node and its ranks: which rank computes on which cores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from mxpeak.configs.grid import squarest
from mxpeak.errors import UsageError


def core_masks(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """The cores of each local rank: contiguous parts, of which the first len(cores) mod ranks have one core more.

    With more ranks than cores each rank has one core, and some cores have several ranks: see `oversubscribed`.  They
    take cores in turn, and move on by one where ranks of a process column, which make a panel together, would meet
    again: after lcm(Q, C) ranks, of C cores, in the squarest grid of P x Q.
    """
    if not cores:
        raise UsageError("the list of cores is empty; use at least one core")
    if len(set(cores)) != len(cores):
        twice = sorted(core for core, count in Counter(cores).items() if count > 1)
        raise UsageError(f"the list contains these cores twice: {short_list(twice)}; use each core once")
    if oversubscribed(cores, ranks):
        again = math.lcm(squarest(ranks)[1], len(cores))
        return [[cores[(rank + rank // again) % len(cores)]] for rank in range(ranks)]
    size, longer = divmod(len(cores), ranks)
    starts = [rank * size + min(rank, longer) for rank in range(ranks + 1)]
    return [list(cores[starts[rank] : starts[rank + 1]]) for rank in range(ranks)]


def masks_near(cores: Sequence[int], near: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """The cores of each local rank near its device: ranks near the same cores share them as `core_masks` has it.

    near[rank]: the cores near a rank's device, whether it may use them or not.  None where a rank would get no core of
    its own there, or devices lie near cores that overlap: then nearness decides nothing.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, beside in enumerate(near):
        groups.setdefault(tuple(core for core in cores if core in set(beside)), []).append(rank)
    taken = [core for group in groups for core in group]
    if len(set(taken)) < len(taken) or any(oversubscribed(group, len(ranks)) for group, ranks in groups.items()):
        return None
    masks = {rank: mask for group, ranks in groups.items() for rank, mask in zip(ranks, core_masks(group, len(ranks)))}
    return [masks[rank] for rank in range(len(near))]


def split_masks(
    masks: Sequence[Sequence[int]], near: Sequence[Sequence[int]], rows: Sequence[int | None]
) -> list[list[int]]:
    """Return the cores of each local rank: ranks that may all use the same cores share them out.

    masks[rank]: the cores that the launcher left to a rank; near[rank]: those near its device; rows[rank]: its process
    row if its ranks compute in turn.  Only ranks that no launcher has bound take the cores of their row in turn.
    """
    groups = _alike(masks)
    found: dict[int, list[int]] = {}
    for cores, ranks in groups.items():
        parts = [list(cores)]
        if len(ranks) > 1:
            parts = masks_near(cores, [near[rank] for rank in ranks]) or core_masks(cores, len(ranks))
        found |= dict(zip(ranks, parts))
    shares, known = [found[rank] for rank in range(len(masks))], [row for row in rows if row is not None]
    return taking_turns(shares, known) if len(groups) == 1 and 1 < len(known) == len(masks) else shares


def devices_near(masks: Sequence[Sequence[int]], beside: Sequence[Sequence[int]]) -> list[int]:
    """Return the device of each local rank: near its cores for as many ranks as possible, else in the order of ranks.

    masks[rank]: the cores that the launcher left to a rank; beside[device]: those near a device, none if the system
    does not say.  Each device has as many ranks as any other, or one more.  Ranks that may use the same cores take
    devices in their order, so the unbound rank r has device r.  A maximum matching by augmenting paths (Kuhn, 1955).
    """
    slots = [slot % len(beside) for slot in range(max(len(masks), len(beside)))]
    close = [[bool(set(mask) & set(beside[device])) for device in slots] for mask in masks]
    taken: dict[int, int] = {}

    def seat(rank: int, tried: set[int]) -> bool:
        near = [slot for slot in range(len(slots)) if close[rank][slot] and slot not in tried]
        for slot in sorted(near, key=lambda slot: slot in taken):  # those that are free first
            tried.add(slot)
            if slot not in taken or seat(taken[slot], tried):
                taken[slot] = rank
                return True
        return False

    alone = [rank for rank in range(len(masks)) if not seat(rank, set())]
    taken |= dict(zip((slot for slot in range(len(slots)) if slot not in taken), alone))
    chosen = {rank: slots[slot] for slot, rank in taken.items()}
    for ranks in _alike(masks).values():
        chosen |= dict(zip(ranks, sorted(chosen[rank] for rank in ranks)))
    return [chosen[rank] for rank in range(len(masks))]


def _alike(masks: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Group the ranks that may use the same cores."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, mask in enumerate(masks):
        groups.setdefault(tuple(mask), []).append(rank)
    return groups


def taking_turns(masks: Sequence[Sequence[int]], rows: Sequence[int]) -> list[list[int]]:
    """The cores of each local rank where the ranks of a process row compute one after the other (rocHPL, §III-B).

    A panel is factored by one process column, and the others wait for it: so a rank's first core is its own, and the
    rest of its process row's cores serve each of the row's ranks in turn.  masks[rank]: its share of the node's cores,
    rows[rank]: its process row.  Of C cores with p×q ranks each FACT has 1 + (C - pq)/p.
    """
    others: dict[int, list[int]] = {}
    for mask, row in zip(masks, rows):
        others.setdefault(row, []).extend(mask[1:])
    return [[*mask, *(core for core in others[row] if core not in mask)] for mask, row in zip(masks, rows)]


def oversubscribed(cores: Collection[int], ranks: int) -> bool:
    """Whether some core must serve two ranks at once, because there are more ranks than cores."""
    return ranks > len(cores)


def short_list(cores: Sequence[int]) -> str:
    """Numbers of cores or ranks as a short list such as 0-3,8,10-11."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
