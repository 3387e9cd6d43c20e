"""Read a metrics file by the parsers of Prometheus for both formats, which must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format


def metrics(text: str) -> dict[str, float]:
    """Return every sample by its name and labels; each metric has a help text, its type and its unit."""
    families = {family.name: family for family in openmetrics(text)}
    for name, family in families.items():
        assert family.documentation, name
        assert family.type in ("gauge", "counter"), name
        assert all(sample.name == name + "_total" * (family.type == "counter") for sample in family.samples)
        ending = name.rpartition("_")[2]
        assert family.unit == (ending if ending in ("seconds", "watts", "joules", "celsius", "hertz") else ""), name
    found = _samples(openmetrics, text)
    assert list(map(str, found.items())) == list(map(str, _samples(text_format, text).items())), "NaN is not NaN"
    assert text.splitlines()[-1] == "# EOF"
    return found


def _samples(parse: Callable[[str], Iterable[Any]], text: str) -> dict[str, float]:
    return {_written(each.name, each.labels): each.value for family in parse(text) for each in family.samples}


def _written(name: str, labels: dict[str, str]) -> str:
    return name + ("{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else "")
