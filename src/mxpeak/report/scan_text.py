"""Format the result of a scan: the spread of each measure, the ranks or only the outliers, and the verdict."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mxpeak.layout.cores import short_list
from mxpeak.layout.host_list import host_list
from mxpeak.options import count_text
from mxpeak.records import SCANNED_BYTES, size_text, three_digits

WIDTH = 80
#: Largest number of ranks in the table. If there are more ranks, the table contains only the first outliers.
MAX_SHOWN = 16
TITLES = {"hpl": "HPL", "lu": "LU", "gemm": "GEMM", "read": "read", "d2h": "D2H", "h2d": "H2D"}
#: Width of the longest title of a measure.
WIDEST = 16

#: Keys of a rank with the counters of a defect, by the name of the defect.
COUNTERS = {"throttling": ("throttle_events", "throttle_reasons"), "memory errors": ("ecc_uncorrected",)}
#: Width of a measure's column in the table of the ranks, and the least width of the host names.
COLUMN, HOST = 8, 12

Body = Mapping[str, Any]


def scan_text(body: Body) -> str:
    """Return the report of a scan. Lines have at most 80 columns, unless a name is longer."""
    parts = [_heading(body), *(_group(body, group) for group in body["groups"])]
    if rows := _rows(body):
        parts.append(_table(body, rows))
    parts += _residuals(body)
    named = outliers(body)
    parts += [_finding(body, rank) for rank in named[:MAX_SHOWN]]
    if len(named) > MAX_SHOWN:
        parts.append(f"and {len(named) - MAX_SHOWN} more; use --json FILE for all of them")
    parts += [_undecided(body, item) for item in body["undecided"]]
    parts += _links(body)
    if found := _actions(body) + _unchecked(body["ranks"]):
        parts.append(found)
    return "\n".join([*parts, verdict(body)])


def _residuals(body: Body) -> list[str]:
    """Return the range of the scaled residuals of HPL in all rounds, or an empty list without HPL."""
    every = [residual for rank in body["ranks"] for rounds in rank.get("residuals", {}).values() for residual in rounds]
    if not every:
        return []
    return [f"scaled residual of HPL: {_residual_text(every)}, limit {body['problem']['threshold']:g}\n"]


def _residual_text(residuals: Sequence[float | None]) -> str:
    """Return the range of residuals as text; None is a residual that is not finite."""
    finite = [residual for residual in residuals if residual is not None]
    least, largest = (three_digits(bound(finite)) if finite else "" for bound in (min, max))
    if len(finite) < len(residuals):
        return f"{least} to not finite" if finite else "not finite"
    return largest if least == largest else f"{least} to {largest}"


def _links(body: Body) -> list[str]:
    """Return the table of the links, and a line for each slow or wrong link and each adapter with errors."""
    if "links" not in body:
        return []
    links, rounds = count_text(body["link_count"], "link"), count_text(body["problem"]["rounds"], "round")
    lines = [f"{links}, each measured in {rounds}"]
    lines.append(f"{'':28}{'best':>10}{'median':>10}{'worst':>10}{'spread':>10}{'limit':>10}")
    for kind, measures in body["link_spreads"].items():
        lines += [_link_spread(body, kind, name, values) for name, values in measures.items()]
    if "latency" not in body["link_measures"]:
        lines.append("the latencies are not compared, because ranks share cores")
    findings = [_slow_link(body, link) for link in body["slow_links"]]
    findings += [_wrong_link(body, link) for link in body["wrong_links"]]
    lines += ["", *findings[:MAX_SHOWN]] if findings else []
    if len(findings) > MAX_SHOWN:
        lines.append(f"and {len(findings) - MAX_SHOWN} more; use --json FILE for all of them")
    for adapter in body["adapters"]:
        facts = [f"{name} +{change}" for name, change in adapter["errors"].items()]
        if unreadable := adapter.get("unreadable"):
            facts.append(f"no permission to read {count_text(unreadable, 'counter')}")
        if facts:
            lines.append(_wrapped(f"ADAPTER  {adapter['host']} {adapter['port']}: {', '.join(facts)}", "    "))
    return ["\n".join([*lines, ""])]


def _link_spread(body: Body, kind: str, measure: str, values: Body) -> str:
    """Return the line of a measure: bandwidths in GB/s, or latencies in microseconds."""

    def text(rate: float | None) -> str:
        if rate is None:
            return "-"
        return three_digits(rate / 1e9 if measure == "bandwidth" else 1e6 / rate)

    unit = "GB/s" if measure == "bandwidth" else "us"
    least = values["least"] if measure in body["link_measures"] else None
    if measure == "bandwidth" and body["problem"].get("min_link"):
        least = max(least or 0.0, body["problem"].get("min_link"))
    figures = "".join(f"{text(rate):>10}" for rate in (values["best"], values["median"], values["worst"]))
    spread = "-" if values["sigma"] is None else f"{100 * values['sigma'] / values[values['against']]:.1f} %"
    return f"{f'{measure} {kind}':28}{figures}{spread:>10}{text(least or None):>10}  {unit}"


def _ends(body: Body, link: Body) -> str:
    """Return the ranks and the hosts of a link."""
    source, dest = (body["ranks"][link[name]]["host"] for name in ("source", "dest"))
    return f"rank {link['source']} ({source}) to rank {link['dest']} ({dest})"


def _slow_link(body: Body, link: Body) -> str:
    """Return a text about a slow link: its ends, and its bandwidth or its latency."""
    least = body["problem"].get("min_link") or 0.0
    if link["measure"] == "bandwidth":
        below = f" and below --min-link {three_digits(least / 1e9)} GB/s" if link["value"] < least else ""
        value = f"{three_digits(link['value'] / 1e9)} GB/s, {100 * link['share']:.0f} % of the reference{below}"
    else:
        value = f"a latency of {three_digits(1e6 * link['value'])} us, {1 / link['share']:.1f} times the reference"
    return _wrapped(f"SLOW LINK  {_ends(body, link)}: {value}", "    ")


def _wrong_link(body: Body, link: Body) -> str:
    """Return a text about a link whose messages arrived with other content."""
    rounds = body["problem"]["rounds"]
    text = f"messages arrived with wrong content in {link['wrong_rounds']} of {rounds} rounds"
    return _wrapped(f"WRONG LINK  {_ends(body, link)}: {text}", "    ")


def outliers(body: Body) -> list[int]:
    """Return the slow ranks and the ranks with wrong bits."""
    return sorted({finding["rank"] for finding in (*body["slow"], *body["wrong"])})


def verdict(body: Body) -> str:
    """Return the verdict of a scan as text, followed by the hosts to exclude."""
    units, noun = len(_leaders(body)), _noun(body)
    slow, wrong = ({finding["rank"] for finding in body[name]} for name in ("slow", "wrong"))
    if body["status"] == "alike":
        alone = sum(len(group["ranks"]) == 1 for group in body["groups"])
        links = f"all {count_text(body['link_count'], 'link')} agree\n" if body.get("link_count") else ""
        if body.get("against"):
            return f"{count_text(units, noun)} compared with {body['against']}: none is slow or wrong\n{links}"
        if units == 1:
            return f"one {noun}: bitwise identical in all rounds, and no other {noun} to compare it with\n"
        note = f"not compared, because no other {noun} is of the same kind: {count_text(alone, noun)}\n" * bool(alone)
        return f"all {units} {noun}s agree: none is slow, and all of one kind compute identical results\n{links}{note}"
    counts = {"slow": len(slow), "wrong": len(wrong)}
    parts = [f"{count} {'is' if count == 1 else 'are'} {defect}" for defect, count in counts.items() if count]
    exclude = f"exclude  {body['exclude']['slurm']}\n" if body["exclude"]["hosts"] else ""
    named = f"of {count_text(units, noun)}, {' and '.join(parts)}\n" if parts else ""
    return f"{named}{_link_verdict(body)}{_open_questions(body)}{exclude}"


def _link_verdict(body: Body) -> str:
    """Return a sentence with the numbers of slow and wrong links, or an empty text if there are none."""
    ends = {
        defect: {(link["source"], link["dest"]) for link in body.get(f"{defect}_links", ())}
        for defect in ("slow", "wrong")
    }
    parts = [f"{len(links)} {'is' if len(links) == 1 else 'are'} {defect}" for defect, links in ends.items() if links]
    return f"of {count_text(body['link_count'], 'link')}, {' and '.join(parts)}\n" if parts else ""


def _actions(body: Body) -> str:
    """Return a line per severity with the nodes that need an action; empty if no node needs one."""
    nodes: dict[str, list[str]] = {}
    for action in body.get("actions") or ():
        nodes.setdefault(action["severity"], []).append(action["host"])
    return "".join(f"{severity:<8} {host_list(hosts)}\n" for severity, hosts in nodes.items())


def _unchecked(ranks: Sequence[Body]) -> str:
    """Return a text with the defects that a scan could not find, because the counters of ranks were not readable."""
    unknown = {
        name: sum(all(rank.get(key) is None for key in keys) for rank in ranks) for name, keys in COUNTERS.items()
    }
    parts = [f"{name} of {count_text(count, 'rank')}" for name, count in unknown.items() if count]
    if not parts:
        return ""
    return _wrapped(f"not checked, no counters: {', '.join(parts)}", "  ") + "\n"


def _open_questions(body: Body) -> str:
    """Return a sentence that lists the undecided measures and results, with advice; empty if all are decided."""
    rates = dict.fromkeys(measure_title(item["measure"]) for item in body["undecided"] if "measure" in item)
    bits = dict.fromkeys(measure_title(item["result"]) for item in body["undecided"] if "result" in item)
    questions = [f"which {_noun(body)}s are slow ({', '.join(rates)})"] if rates else []
    questions += [f"which results are correct ({', '.join(bits)})"] if bits else []
    if not questions:
        return ""
    larger = "a larger -N, " if any(warning["code"] == "short" for warning in body.get("warnings", ())) else ""
    advice = f"use {larger}more {_noun(body)}s or --rounds, or compare the table with that of a healthy machine"
    return _wrapped(f"undecided: {' and '.join(questions)}; {advice}", "  ") + "\n"


def _heading(body: Body) -> str:
    ranks, problem, product = body["ranks"], body["problem"], body["problem"]["product"]
    hosts = len({rank["host"] for rank in ranks})
    where = f"{count_text(len(ranks), 'rank')} on {count_text(hosts, 'host')}"
    products = f"{count_text(product['times'], 'product')} of {product['m']}x{product['n']}x{product['k']}"
    factored = "HPL" if problem.get("benchmark") == "hpl" else "HPL-MxP's LU"
    work = (
        f"{factored} of N {problem['n']} NB {problem['nb']} {problem['precision']}, {products}, "
        f"{size_text(problem['read_bytes'])} read"
    )
    heading = f"scan of {where}, {count_text(problem['rounds'], 'round')}, warm-up: {problem['warmup']}"
    return f"{heading}\n{_wrapped(work, '  ')}\n"


def measure_title(measure: str) -> str:
    """Return the title of a measure; the measures of groups are their own titles."""
    return TITLES.get(measure, measure)


def _noun(body: Body) -> str:
    """Return the noun of the units that the scan compares."""
    return "node" if body.get("unit") in ("node", "group") else "rank"


def _unit_ranks(rank: Body) -> str:
    """Return the ranks of the unit to which a rank belongs."""
    return str(rank.get("unit_ranks", rank["rank"]))


def _leaders(body: Body) -> list[Body]:
    """Return the records of the first ranks of the units."""
    return [rank for rank in body["ranks"] if rank.get("leads_unit", True)]


def _group(body: Body, group: Body) -> str:
    title = _wrapped(f"{_listed(body, group['ranks'])}: {group['kind']}", "  ")
    head = f"{'':{WIDEST}}{'best':>10}{'median':>10}{'worst':>10}{'spread':>10}{'slow below':>12}"
    return "\n".join([title, head, *(_spread(name, values) for name, values in group["spreads"].items()), ""])


def _spread(measure: str, values: Body) -> str:
    scale, unit = _scale(values["best"], _unit(measure))
    best, middle, worst = (three_digits(values[key] / scale) for key in ("best", "median", "worst"))
    reference = values.get("expected") or values.get(values["against"])
    spread = "-" if values["sigma"] is None else f"{100 * values['sigma'] / reference:.1f} %"
    least = values["least"]  # negative if the rates spread by more than a third
    below = "-" if least is None or least <= 0.0 else three_digits(least / scale)
    return f"{measure_title(measure):{WIDEST}}{best:>10}{middle:>10}{worst:>10}{spread:>10}{below:>12}  {unit}"


def _unit(measure: str) -> str:
    return "B/s" if measure in SCANNED_BYTES else "FLOP/s"


def _scale(rate: float, unit: str) -> tuple[float, str]:
    """Return the factor and the prefixed unit (T or G) with which a rate is printed."""
    return (1e12, "T" + unit) if rate >= 0.9995e12 else (1e9, "G" + unit)


def _rows(body: Body) -> list[Body]:
    """Return the ranks to list in the table: all ranks, or the first outliers if there are too many ranks."""
    units = _leaders(body)
    return units if len(units) <= MAX_SHOWN else [body["ranks"][rank] for rank in outliers(body)[:MAX_SHOWN]]


def _table(body: Body, rows: Sequence[Body]) -> str:
    """Return a table with the medians of each unit over the rounds, its largest deviation and its verdict.

    The rates of a measure have the same unit for all rows. The table omits the last measures if it would be too wide.
    """
    where_width = 12 if _noun(body) == "rank" else 0  # a node computes on all of its ranks
    measures = list(rows[0]["rates"])[: (WIDTH - HOST - 32 - where_width) // COLUMN]
    medians = {row["rank"]: {name: median(row["rates"][name]) for name in measures} for row in rows}
    scales = {name: _scale(max(rates[name] for rates in medians.values()), _unit(name)) for name in measures}
    sizes = Counter(map(_unit_ranks, body["ranks"]))

    def line(ranks: str, where: str, figures: Sequence[str], deviation: str, verdict: str) -> str:
        rates = "".join(f"{figure:>{COLUMN}}" for figure in figures)
        return f"{ranks:>6}  {where:<{where_width}.{where_width}}{rates}{deviation:>11}  {verdict:<9}  "

    first = "rank" if all(_unit_ranks(row) == str(row["rank"]) for row in rows) else "ranks"
    heads = [TITLES.get(name, name.partition(" of ")[2]) for name in measures]
    lines = [line(first, "computes on", heads, "deviation", "verdict") + "host"]
    lines.append(line("", "", [scales[name][1] for name in measures], "", "").rstrip())
    for row in rows:
        figures = [three_digits(medians[row["rank"]][name] / scales[name][0]) for name in measures]
        where = _cores(row) if sizes[_unit_ranks(row)] == 1 else f"{sizes[_unit_ranks(row)]} ranks"
        text = line(_unit_ranks(row), where, figures, _deviation(body, row), _judged(body, row["rank"]))
        host, width = row["host"], WIDTH - len(text)  # host names are cut in the table only
        lines.append(text + (host if len(host) <= width else f"{host[: width - 1]}…"))
    return "\n".join(lines) + "\n"


def _deviation(body: Body, row: Body) -> str:
    """Return the largest deviation of the medians of a rank from the references of its group, in percent."""
    group = next(group for group in body["groups"] if row["rank"] in group["ranks"])
    references = {
        name: values.get("expected") or values.get(values["against"]) for name, values in group["spreads"].items()
    }
    changes = [median(row["rates"][name]) / known - 1.0 for name, known in references.items() if known]
    return f"{100 * max(changes, key=abs):+.1f} %" if changes else "-"


def _judged(body: Body, rank: int) -> str:
    """Return the verdict of a rank: WRONG, SLOW, undecided or ok."""
    for name, word in (("wrong", "WRONG"), ("slow", "SLOW")):
        if any(finding["rank"] == rank for finding in body[name]):
            return word
    return "undecided" if any(rank in finding["ranks"] for finding in body["undecided"]) else "ok"


def _cores(rank: Body) -> str:
    if rank["device"] != "cpu":
        return str(rank["device"])
    return f"core{'s' * (not rank['cores'].isdecimal())} {rank['cores']}"


def _finding(body: Body, rank: int) -> str:
    """Return a text about a slow or wrong rank: its defects, clock, throttling and memory errors."""
    record = body["ranks"][rank]
    rounds = body["problem"]["rounds"]
    wrong = [finding for finding in body["wrong"] if finding["rank"] == rank]
    slow = [finding for finding in body["slow"] if finding["rank"] == rank]
    defects = [_wrong_result(body, finding) for finding in wrong]
    for finding in slow:
        share = f"{100 * finding['share']:.0f} % of the {_reference(body, finding)}"
        several = len(record["rates"][finding["measure"]]) > 1  # for groups, only the best round is kept
        when = f" in {finding['rounds']} of {rounds} rounds" if several else ""
        defects.append(f"{measure_title(finding['measure'])} at {share}{when}")
    where = f"{record['host']}, {_cores(record)}" + (f", {record['uuid']}" if record.get("uuid") else "")
    words = "WRONG" if wrong else "SLOW"
    name = f"rank {rank} ({where})" if _noun(body) == "rank" else f"node {record['host']} (ranks {_unit_ranks(record)})"
    return _wrapped(f"{words}  {name}: {'; '.join([*defects, *health(record)])}", "    ")


def _wrong_result(body: Body, finding: Body) -> str:
    """Return a text about a wrong result: its residual, or the bits with which its bits disagree."""
    title, ranks = measure_title(finding["result"]), finding.get("ranks")
    of_ranks = f" (rank{'s' * (len(ranks) > 1)} {short_list(ranks)})" if ranks else ""
    if finding["reason"] == "residual":
        residuals = body["ranks"][finding["rank"]]["residuals"][finding["result"]]
        values = f"scaled residual {_residual_text(residuals)}, limit {body['problem']['threshold']:g}"
        return f"{title} fails its check{of_ranks}: {values}"
    return f"its results of {title} {_WRONG[finding['reason']]}{of_ranks}"


_WRONG = {
    "differ": "differ from those of the majority",
    "change": "change from round to round",
    "baseline": "differ from those of the baseline",
}


def _reference(body: Body, finding: Body) -> str:
    """Return the reference of a slow rank: `median` or `best`."""
    group = next(group for group in body["groups"] if finding["rank"] in group["ranks"])
    return str(group["spreads"][finding["measure"]]["against"])


def health(record: Body) -> list[str]:
    """Return texts about clocks, temperature, power, throttling and memory errors, which may explain a defect."""
    facts = []
    if record.get("clock_mhz") is not None and record.get("max_clock_mhz") is not None:
        facts.append(f"clock down to {record['clock_mhz']:.0f} of {record['max_clock_mhz']:.0f} MHz")
    if record.get("max_temperature_c") is not None:
        facts.append(f"up to {record['max_temperature_c']:.0f} °C")
    if record.get("max_power_w") is not None:
        facts.append(f"up to {record['max_power_w']:.0f} W")
    if record.get("throttle_events"):
        facts.append(f"throttled {count_text(record['throttle_events'], 'time')}")
    if record.get("throttle_reasons"):
        facts.append(f"limited by {', '.join(record['throttle_reasons'])}")
    for name in ("corrected", "uncorrected"):
        if record.get(f"ecc_{name}"):
            new = record.get(f"ecc_{name}_new")
            during = f", {new} of them during the scan" if new else ""
            facts.append(f"{count_text(record[f'ecc_{name}'], f'{name} memory error')}{during}")
    return facts


def _undecided(body: Body, finding: Body) -> str:
    """Return a text that explains why a measure or a result of some ranks is undecided."""
    noun = _noun(body)
    if "measure" in finding:
        text = _unclear_rate(body, finding)
    elif finding["reason"] == "change":
        title = measure_title(finding["result"])
        text = f"the results of {title} change from round to round on most {noun}s, so they identify no wrong {noun}"
    else:
        text = f"the results of {measure_title(finding['result'])} differ, and no majority of the {noun}s agrees"
    return _wrapped(f"UNDECIDED  {_listed(body, finding['ranks'])}: {text}", "    ")


def _unclear_rate(body: Body, finding: Body) -> str:
    """Return a text that states the difference between the rates, and why no rank is identified as slow."""
    title, tolerance = measure_title(finding["measure"]), f"--tolerance {100 * body['problem']['tolerance']:g}%"
    spread, against = f"{100 * finding['spread']:.1f} %", _reference(body, {**finding, "rank": finding["ranks"][0]})
    apart = f"{100 * abs(finding['share'] - 1):.1f} % {'above' if finding['share'] > 1 else 'below'} the {against}"
    if finding["reason"] == "spread" and against == "best":
        return f"the rates of {title} vary between rounds: a comparison is uncertain by {spread}, more than {tolerance}"
    if finding["reason"] == "spread":
        return f"the {_noun(body)}s' rates of {title} spread by {spread}, more than {tolerance}, so none is typical"
    if finding["reason"] == "faster":
        return f"{title} is {apart}: these {_noun(body)}s are unusual, or most of the others are slow"
    return f"{title} is {apart}, more than {tolerance}, but the spread of {spread} or single rounds may explain it"


def _listed(body: Body, ranks: Sequence[int]) -> str:
    """Return the units of these leading ranks: the ranks, or the names of the nodes."""
    noun = _noun(body)
    names = short_list(ranks) if noun == "rank" else host_list([body["ranks"][rank]["host"] for rank in ranks])
    return f"{noun}{'s' * (len(ranks) > 1)} {names}"


def _wrapped(text: str, indent: str) -> str:
    bound = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.fill(bound, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")
