"""Remove each wait of the package from recorded logs, and test whether the detector of races reports it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.support.queues.log import PRODUCT, Log, Wait
from tests.support.queues.races import races

#: Methods that wait for a stream, an event or a message, and the files that use a device's queues.
NAMES = ("wait", "join", "wait_stream", "wait_event", "synchronize")
#: Methods that poll. After a poll, the host may know as much as after a wait, because polls also start messages.
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
        """Return whether this call recorded a wait."""
        return _is_at(self, wait.place)

    def holds(self, line: str) -> bool:
        """Return whether a line belongs to this call."""
        file, _, number = line.rpartition(":")
        return file == self.file and self.first <= int(number) <= self.last


@cache
def _is_at(site: Site, place: tuple[str, ...]) -> bool:
    """Compare a site with a place; the cache helps because thousands of waits share a few places."""
    return any(map(site.holds, place))


@cache
def sites() -> list[Site]:
    """Return all calls of the package that wait."""
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
    """Return whether a node calls a method with one of these names; `str.join` does not count."""
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in names and not isinstance(called.value, ast.Constant)


@dataclass(frozen=True)
class Verdict:
    """The effect of removing a site: whether a log has a wait there, and the first race without it."""

    site: Site
    reached: bool
    race: str


def verdicts(logs: Iterable[Log]) -> list[Verdict]:
    """Remove each site from logs without races, the shortest log first, and return the effects."""
    short = sorted(logs, key=lambda log: len(log.records))
    waits = [(log, {one.place: one for one in log.records if isinstance(one, Wait)}) for log in short]
    return [_verdict(site, [log for log, found in waits if any(map(site.matches, found.values()))]) for site in sites()]


def _verdict(site: Site, logs: list[Log]) -> Verdict:
    for log in logs:
        if found := races(log, site.matches, limit=1):
            return Verdict(site, True, str(found[0]))
    return Verdict(site, bool(logs), "")
