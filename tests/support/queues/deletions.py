"""Remove each wait of the package from recorded logs, and test whether the detector of races reports it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.support.queues.log import PRODUCT, Log, Wait
from tests.support.queues.races import races

#: Calls by which something waits for something, and the files in which a device's queues are spoken of.
NAMES = ("wait", "join", "wait_stream", "wait_event", "synchronize")
#: Looks, by which the host may learn as much as by a wait, where messages are begun by whoever looks.
LOOKS = {"comm/deferred.py": ("query", "test")}
FILES = (
    "kernels/torch/*.py", "kernels/torch/*/*.py", "solvers/*.py", "solvers/*/*.py", "distributed/*.py", "comm/base.py",
    "comm/broadcast.py", "comm/exchange.py", "comm/deferred.py", "comm/transports/torchdist.py",
    "comm/transports/gloo.py", "comm/transports/nccl.py", "async_buffer.py",
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Site:
    """A call that waits: its file, its lines, and the function that contains it."""

    file: str
    first: int
    last: int
    function: str

    def matches(self, wait: Wait) -> bool:
        """Whether a wait came of it."""
        return _is_at(self, wait.place)

    def holds(self, line: str) -> bool:
        """Whether a line is one of its lines."""
        file, _, number = line.rpartition(":")
        return file == self.file and self.first <= int(number) <= self.last


@cache
def _is_at(site: Site, place: tuple[str, ...]) -> bool:
    """Thousands of waits come of a few places."""
    return any(map(site.holds, place))


@cache
def sites() -> list[Site]:
    """Every call of the package that waits."""
    return sorted(site for pattern in FILES for path in PRODUCT.glob(pattern) for site in _of(str(path)))


def _of(path: str) -> Iterator[Site]:
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    name = path.removeprefix(f"{PRODUCT}/")
    for node, function in _nodes(tree, ""):
        if _calls(node, (*NAMES, *LOOKS.get(name, ()))):
            yield Site(name, node.lineno, node.end_lineno or node.lineno, function)


def _nodes(node: ast.AST, scope: str) -> Iterator[tuple[Any, str]]:
    """Yield every node below this one, with the qualified name of the class or function that contains it."""
    for child in ast.iter_child_nodes(node):
        yield child, scope
        within = f"{scope}.{child.name}".lstrip(".") if isinstance(child, ast.ClassDef | ast.FunctionDef) else scope
        yield from _nodes(child, within)


def _calls(node: Any, names: tuple[str, ...]) -> bool:
    """Whether it is a call by one of the names; not a string's join."""
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in names and not isinstance(called.value, ast.Constant)


@dataclass(frozen=True)
class Verdict:
    """What leaving out a site does: whether anything waited there, and the first race that came of it."""

    site: Site
    reached: bool
    race: str


def verdicts(logs: Iterable[Log]) -> list[Verdict]:
    """Each site, left out of logs in which there are no races with it: of the short ones first."""
    short = sorted(logs, key=lambda log: len(log.records))
    waits = [(log, {one.place: one for one in log.records if isinstance(one, Wait)}) for log in short]
    return [_verdict(site, [log for log, found in waits if any(map(site.matches, found.values()))]) for site in sites()]


def _verdict(site: Site, logs: list[Log]) -> Verdict:
    for log in logs:
        if found := races(log, site.matches, limit=1):
            return Verdict(site, True, str(found[0]))
    return Verdict(site, bool(logs), "")
