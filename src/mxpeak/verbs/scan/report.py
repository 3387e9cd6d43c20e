"""Text of a scan: the spread of each measure, all or only the outlying ranks, and the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.layout.cores import short_list
from mxpeak.records import size_text, three_digits

WIDTH = 80
#: Largest number of ranks in the table; of more ranks it shows the first outliers.
MOST_SHOWN = 16
TITLES = {"lu": "LU", "gemm": "GEMM", "read": "read"}
UNITS = {"lu": "FLOP/s", "gemm": "FLOP/s", "read": "B/s"}

Body = Mapping[str, Any]


def scan_text(body: Body) -> str:
    """Return the text of a scan, at most 80 columns wide except for longer names."""
    parts = [_heading(body), *(_group(group) for group in body["groups"])]
    if rows := _rows(body):
        parts.append(_table(rows))
    named = outliers(body)
    parts += [_finding(body, rank) for rank in named[:MOST_SHOWN]]
    if len(named) > MOST_SHOWN:
        parts.append(f"and {len(named) - MOST_SHOWN} more; use --json FILE for all of them")
    parts += [_undecided(body, one) for one in body["undecided"]]
    return "\n".join([*parts, verdict(body)])


def outliers(body: Body) -> list[int]:
    """Return the ranks that are slow or wrong."""
    return sorted({one["rank"] for one in (*body["slow"], *body["wrong"])})


def verdict(body: Body) -> str:
    """Return the verdict in one line, and the hosts to exclude in a second line."""
    ranks = len(body["ranks"])
    slow, wrong = ({one["rank"] for one in body[name]} for name in ("slow", "wrong"))
    if body["status"] == "alike":
        alone = sum(len(group["ranks"]) == 1 for group in body["groups"])
        if ranks == 1:
            return "one rank: bitwise identical in all rounds, and no other rank to compare it with\n"
        note = f"not compared, because no other rank is of the same kind: {_count(alone, 'rank')}\n" if alone else ""
        return f"all {ranks} ranks agree: none is slow, and all of one kind compute identical results\n{note}"
    said = [f"{_ranks(len(slow))} slow"] if slow else []
    said += [f"{_ranks(len(wrong))} wrong"] if wrong else []
    exclude = f"exclude  {body['exclude']['slurm']}\n" if body["exclude"]["hosts"] else ""
    named = f"of {_count(ranks, 'rank')}, {' and '.join(said)}\n" if said else ""
    return f"{named}{_open_questions(body)}{exclude}"


def _open_questions(body: Body) -> str:
    """Return the undecided measures and how to decide them, in one line; empty if all are decided."""
    rates = dict.fromkeys(TITLES[one["measure"]] for one in body["undecided"] if "measure" in one)
    bits = dict.fromkeys(TITLES[one["result"]] for one in body["undecided"] if "result" in one)
    said = [f"which ranks are slow ({', '.join(rates)})"] if rates else []
    said += [f"which results are correct ({', '.join(bits)})"] if bits else []
    if not said:
        return ""
    advice = "use more ranks or --rounds, or compare the table with that of a healthy machine"
    return _wrapped(f"undecided: {' and '.join(said)}; {advice}", "  ") + "\n"


def _ranks(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _heading(body: Body) -> str:
    ranks, problem, product = body["ranks"], body["problem"], body["problem"]["product"]
    hosts = len({one["host"] for one in ranks})
    matrix = problem["read_bytes"]
    return (
        f"scan of {_count(len(ranks), 'rank')} on {_count(hosts, 'host')}, {_count(problem['rounds'], 'round')}, "
        f"warm-up: {problem['warmup']}\n"
        f"LU of N {problem['n']} NB {problem['nb']} {problem['precision']}, {_count(product['times'], 'product')} of "
        f"{product['m']}x{product['n']}x{product['k']}, {size_text(matrix)} read\n"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# --- how the ranks of a kind spread -----------------------------------------------------------------------------


def _group(group: Body) -> str:
    title = _wrapped(f"{_listed(group['ranks'])}: {group['kind']}", "  ")
    head = f"{'':8}{'best':>10}{'median':>10}{'worst':>10}{'spread':>10}{'slow below':>12}"
    return "\n".join([title, head, *(_spread(name, found) for name, found in group["spreads"].items()), ""])


def _spread(measure: str, found: Body) -> str:
    scale, unit = _scale(found["best"], UNITS[measure])
    best, middle, worst = (three_digits(found[key] / scale) for key in ("best", "median", "worst"))
    spread = "-" if found["sigma"] is None else f"{100 * found['sigma'] / found[found['against']]:.1f} %"
    least = "-" if found["least"] is None else three_digits(found["least"] / scale)
    return f"{TITLES[measure]:8}{best:>10}{middle:>10}{worst:>10}{spread:>10}{least:>12}  {unit}"


def _scale(rate: float, unit: str) -> tuple[float, str]:
    """Return the factor and the unit in which to print a rate."""
    return (1e12, "T" + unit) if rate >= 0.9995e12 else (1e9, "G" + unit)


# --- the ranks --------------------------------------------------------------------------------------------------


def _rows(body: Body) -> list[Body]:
    """Return the ranks in the table."""
    ranks: list[Body] = body["ranks"]
    return ranks if len(ranks) <= MOST_SHOWN else [ranks[rank] for rank in outliers(body)[:MOST_SHOWN]]


def _table(rows: Sequence[Body]) -> str:
    """Return the table of each rank's medians over the rounds, in the units of the fastest one."""
    measures = list(rows[0]["rates"])
    median = {one["rank"]: {name: _median(one["rates"][name]) for name in measures} for one in rows}
    scales = {name: _scale(max(rates[name] for rates in median.values()), UNITS[name]) for name in measures}
    heads = "".join(f"{TITLES[name] + ' ' + scales[name][1]:>13}" for name in measures)
    lines = [f"{'rank':>6}  {'computes on':<14}{heads}  host"]
    for one in rows:
        rates = "".join(f"{three_digits(median[one['rank']][name] / scales[name][0]):>13}" for name in measures)
        line = f"{one['rank']:>6}  {_cores(one):<14}{rates}  "
        lines.append(line + _fitted(one["host"], WIDTH - len(line)))
    return "\n".join(lines) + "\n"


def _median(rates: Sequence[float]) -> float:
    from statistics import median

    return median(rates)


def _cores(one: Body) -> str:
    if one["device"] != "cpu":
        return str(one["device"])
    return f"core{'s' * (not one['cores'].isdecimal())} {one['cores']}"


def _fitted(name: str, width: int) -> str:
    """Return a name shortened to a column; the findings and the JSON contain it in full."""
    return name if len(name) <= width else name[: width - 1] + "…"


# --- what stands out --------------------------------------------------------------------------------------------


def _finding(body: Body, rank: int) -> str:
    """Return the defects of a rank with its clocks and memory errors."""
    one = body["ranks"][rank]
    rounds = body["problem"]["rounds"]
    wrong = [found for found in body["wrong"] if found["rank"] == rank]
    slow = [found for found in body["slow"] if found["rank"] == rank]
    said = [f"its results of {TITLES[found['result']]} {_WRONG[found['reason']]}" for found in wrong]
    said += [
        f"{TITLES[found['measure']]} at {100 * found['share']:.0f} % of the {_reference(body, found)} "
        f"in {found['rounds']} of {rounds} rounds"
        for found in slow
    ]
    where = f"{one['host']}, {_cores(one)}" + (f", {one['uuid']}" if one["uuid"] else "")
    words = "WRONG" if wrong else "SLOW"
    return _wrapped(f"{words}  rank {rank} ({where}): {'; '.join([*said, *health(one)])}", "    ")


_WRONG = {"differ": "differ from those of the majority", "change": "change from round to round"}


def _reference(body: Body, found: Body) -> str:
    """Return the name of the reference of a slow rank."""
    group = next(group for group in body["groups"] if found["rank"] in group["ranks"])
    return str(group["spreads"][found["measure"]]["against"])


def health(one: Body) -> list[str]:
    """Return the readings of a rank's cores or device that may explain a defect."""
    said = []
    if one["clock_mhz"] is not None and one["max_clock_mhz"] is not None:
        said.append(f"clock down to {one['clock_mhz']:.0f} of {one['max_clock_mhz']:.0f} MHz")
    if one["throttle_events"]:
        said.append(f"throttled {_count(one['throttle_events'], 'time')}")
    if one["throttle_reasons"]:
        said.append(f"limited by {', '.join(one['throttle_reasons'])}")
    for name in ("corrected", "uncorrected"):
        if one[f"ecc_{name}"]:
            new = one[f"ecc_{name}_new"]
            during = f", {new} of them during the scan" if new else ""
            said.append(f"{_count(one[f'ecc_{name}'], f'{name} memory error')}{during}")
    return said


def _undecided(body: Body, found: Body) -> str:
    """Return why a measure or the bits of some ranks are undecided."""
    text = _unclear_rate(body, found) if "measure" in found else _unclear_bits(found)
    return _wrapped(f"UNDECIDED  {_listed(found['ranks'])}: {text}", "    ")


def _unclear_bits(found: Body) -> str:
    title = TITLES[found["result"]]
    if found["reason"] == "change":
        return f"the results of {title} change from round to round on most ranks, so they identify no wrong rank"
    return f"the results of {title} differ, and no majority of the ranks agrees"


def _unclear_rate(body: Body, found: Body) -> str:
    """Return the difference between the rates, and why it identifies no slow rank."""
    title, tolerance = TITLES[found["measure"]], f"--tolerance {100 * body['problem']['tolerance']:g}%"
    spread, against = f"{100 * found['spread']:.1f} %", _reference(body, {**found, "rank": found["ranks"][0]})
    apart = f"{100 * abs(found['share'] - 1):.1f} % {'above' if found['share'] > 1 else 'below'} the {against}"
    if found["reason"] == "spread" and against == "best":
        return f"the rates of {title} vary between rounds: a comparison is uncertain by {spread}, more than {tolerance}"
    if found["reason"] == "spread":
        return f"the ranks' rates of {title} spread by {spread}, more than {tolerance}, so none of them is typical"
    if found["reason"] == "faster":
        return f"{title} is {apart}: these ranks are unusual, or most of the others are slow"
    return f"{title} is {apart}, more than {tolerance}, but the spread of {spread} or single rounds may explain it"


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {short_list(ranks)}"


def _wrapped(text: str, indent: str) -> str:
    bound = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.fill(bound, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")
