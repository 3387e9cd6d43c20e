"""Read a file in Prometheus's text format."""

from __future__ import annotations

import re


def metrics(text: str) -> dict[str, float]:
    """Every sample by its name and labels; each metric has HELP and TYPE once, before its samples."""
    comments, values = dict[str, str](), dict[str, float]()
    for line in text.splitlines():
        if match := re.fullmatch(r"# (HELP|TYPE) (mxpeak_\w+) (.+)", line):
            assert match[1] != "TYPE" or match[3] in ("gauge", "counter")
            comments[match[2]] = comments.get(match[2], "") + match[1]
            continue
        if line.startswith("# no "):  # a device lacks a value
            continue
        match = re.fullmatch(r'(mxpeak_\w+)(\{\w+="(?:[^"\\\n]|\\.)*"(?:,\w+="(?:[^"\\\n]|\\.)*")*\})? (\S+)', line)
        assert match, line
        assert comments[match[1]] == "HELPTYPE", line
        values[match[1] + (match[2] or "")] = float(match[3])
    assert text.endswith("\n")
    return values
