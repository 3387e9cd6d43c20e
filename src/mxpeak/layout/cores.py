"""Assign the cores and devices of one node to its ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from mxpeak.configs.grid import squarest
from mxpeak.errors import UsageError


def core_masks(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """Divide the cores of a node among its ranks in contiguous parts, and return the cores of each local rank.

    The first len(cores) mod ranks parts have one core more. If there are more ranks than cores, each rank has one core
    and some cores have several ranks (see `oversubscribed`). Cores are then assigned cyclically, with a shift by one
    core after lcm(Q, C) ranks for C cores, in the squarest grid P x Q. The shift separates ranks of one process
    column, which factor a panel together.
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
    """Return the cores of each local rank near its device, or None if the cores cannot be divided in this way.

    near[rank] are the cores near a rank's device, whether or not this process may use them. Cores near several ranks
    are divided by `core_masks`. The function returns None if a rank would have no core of its own, or if the sets of
    cores near two devices overlap partly.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, near_cores in enumerate(near):
        groups.setdefault(tuple(core for core in cores if core in set(near_cores)), []).append(rank)
    taken = [core for group in groups for core in group]
    if len(set(taken)) < len(taken) or any(oversubscribed(group, len(ranks)) for group, ranks in groups.items()):
        return None
    masks = {rank: mask for group, ranks in groups.items() for rank, mask in zip(ranks, core_masks(group, len(ranks)))}
    return [masks[rank] for rank in range(len(near))]


def split_masks(
    masks: Sequence[Sequence[int]], near: Sequence[Sequence[int]], rows: Sequence[int | None]
) -> list[list[int]]:
    """Divide cores that several ranks may use among these ranks, and return the cores of each local rank.

    masks[rank] are the cores that the launcher allows for a rank, and near[rank] are the cores near its device.
    rows[rank] is the rank's process row if the ranks of a row compute alternately, otherwise None. The ranks of a row
    share cores only if the launcher does not bind ranks.
    """
    groups = _ranks_by_cores(masks)
    cores_by_rank: dict[int, list[int]] = {}
    for cores, ranks in groups.items():
        parts = [list(cores)]
        if len(ranks) > 1:
            parts = masks_near(cores, [near[rank] for rank in ranks]) or core_masks(cores, len(ranks))
        cores_by_rank |= dict(zip(ranks, parts))
    shares, process_rows = [cores_by_rank[rank] for rank in range(len(masks))], [row for row in rows if row is not None]
    return taking_turns(shares, process_rows) if len(groups) == 1 and 1 < len(process_rows) == len(masks) else shares


def devices_near(masks: Sequence[Sequence[int]], device_cores: Sequence[Sequence[int]]) -> list[int]:
    """Return the device of each local rank: near its cores for as many ranks as possible, otherwise in rank order.

    masks[rank] are the cores that the launcher allows for a rank. device_cores[device] are the cores near a device, or
    empty if the system does not report these cores. The numbers of ranks of two devices differ by at most one. Ranks
    that may use the same cores get devices in rank order, so an unbound rank r has device r. The assignment is a
    maximum matching by augmenting paths (Kuhn, 1955).
    """
    slots = [slot % len(device_cores) for slot in range(max(len(masks), len(device_cores)))]
    close = [[bool(set(mask) & set(device_cores[device])) for device in slots] for mask in masks]
    taken: dict[int, int] = {}

    def seat(rank: int, tried: set[int]) -> bool:
        near = [slot for slot in range(len(slots)) if close[rank][slot] and slot not in tried]
        for slot in sorted(near, key=lambda slot: slot in taken):  # try free slots first
            tried.add(slot)
            if slot not in taken or seat(taken[slot], tried):
                taken[slot] = rank
                return True
        return False

    alone = [rank for rank in range(len(masks)) if not seat(rank, set())]
    taken |= dict(zip((slot for slot in range(len(slots)) if slot not in taken), alone))
    chosen = {rank: slots[slot] for slot, rank in taken.items()}
    for ranks in _ranks_by_cores(masks).values():
        chosen |= dict(zip(ranks, sorted(chosen[rank] for rank in ranks)))
    return [chosen[rank] for rank in range(len(masks))]


def device_groups(first: Sequence[int], devices: int, each: int) -> list[list[int]]:
    """Return `each` distinct devices for every local rank: its own first device, then unused devices in order."""
    left = [device for device in range(devices) if device not in first]
    size = each - 1
    return [[own, *left[rank * size : (rank + 1) * size]] for rank, own in enumerate(first)]


def _ranks_by_cores(masks: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Return a dictionary from each set of allowed cores to the ranks that may use these cores."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, mask in enumerate(masks):
        groups.setdefault(tuple(mask), []).append(rank)
    return groups


def taking_turns(masks: Sequence[Sequence[int]], rows: Sequence[int]) -> list[list[int]]:
    """Return the cores of each local rank if the ranks of a process row compute one after the other (rocHPL, §III-B).

    One process column factors a panel while the others wait. Therefore, a rank's first core is its own, and the other
    cores of its process row serve each rank of the row alternately. masks[rank] are the rank's share of the node's
    cores, and rows[rank] is its process row. With C cores and p×q ranks, each FACT uses 1 + (C - pq)/p cores.
    """
    others: dict[int, list[int]] = {}
    for mask, row in zip(masks, rows):
        others.setdefault(row, []).extend(mask[1:])
    return [[*mask, *(core for core in others[row] if core not in mask)] for mask, row in zip(masks, rows)]


def oversubscribed(cores: Collection[int], ranks: int) -> bool:
    """Return whether there are more ranks than cores, so that a core must serve several ranks at the same time."""
    return ranks > len(cores)


def short_list(cores: Sequence[int]) -> str:
    """Format numbers of cores or ranks as a short list such as 0-3,8,10-11."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
