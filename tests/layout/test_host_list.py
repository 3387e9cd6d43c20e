"""Test host names in Slurm's syntax in both directions."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from mxpeak.errors import UsageError
from mxpeak.layout.host_list import host_list, hosts_of


def expanded(text: str) -> list[str]:
    """The names that Slurm reads: a range has the padding of its first number."""
    names = []
    for prefix, bracket, plain in re.findall(r"([^,\[\]]+)\[([^\]]+)\]|([^,\[\]]+)", text):
        for part in bracket.split(",") if bracket else [""]:
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1) if part else []
            names += [f"{prefix}{number:0{len(first)}}" for number in numbers]
        names += [plain] if plain else []
    return names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["node003"], "node003"),
        (["node009", "node003", "node008", "node007"], "node[003,007-009]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n099", "n100"], "n[099-100]"),
        (["n9", "n09", "n10"], "n[9,09-10]"),
        (["login", "n1", "gpu2", "gpu3"], "gpu[2-3],login,n1"),
        (["r1i2n03", "r1i2n04", "r1i3n04"], "r1i2n[03-04],r1i3n04"),
        (["node1.cluster.org", "node2.cluster.org", "node1"], "node[1-2]"),
        (["node1-ib", "node2-ib"], "node1-ib,node2-ib"),
    ],
)
def test_lists_are_written_as_slurm_writes_them(names: list[str], text: str) -> None:
    assert host_list(names) == text


@pytest.mark.parametrize("form", ["n{}", "n{:02}", "n{:03}"])
def test_every_set_of_names_is_read_back(form: str) -> None:
    numbers = (0, 1, 2, 8, 9, 10, 11, 99, 100)
    for count in range(len(numbers) + 1):
        for chosen in combinations(numbers, count):
            names = [form.format(number) for number in chosen]
            assert sorted(expanded(host_list(names))) == sorted(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("n[1-3,5],gpu-[09-10].org", ["n1", "n2", "n3", "n5", "gpu-09.org", "gpu-10.org"]),
        ("n1,n2.cluster", ["n1", "n2.cluster"]),
    ],
)
def test_a_list_becomes_names(text: str, names: list[str]) -> None:
    assert hosts_of(text) == names
    assert set(hosts_of(host_list(names))) == {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("text", ["n[3-1]", "n[a]", "n 1", "n[1", "n]1", "n[1]x[2]", "n[-1]", "n[1-]", "n[0-999999]"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="use"):
        hosts_of(text)
