"""Test that -h fits on one screen, that --help lists every flag once, and that `mxpeak help` explains topics."""

from __future__ import annotations

import argparse

import pytest

from mxpeak.cli.help import LINES, TOPICS, WIDTH, commands_of, short_help
from mxpeak.cli.main import main, parser
from mxpeak.cli.registry import GROUPS, verbs_by_group
from mxpeak.options import options


def every_parser() -> dict[str, argparse.ArgumentParser]:
    """Return all parsers by the words that call them."""
    parsers, pending = {}, {"mxpeak": parser()}
    while pending:
        words, one = pending.popitem()
        parsers[words] = one
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                pending |= {f"{words} {name}": below for name, below in action.choices.items()}
    return parsers


@pytest.mark.parametrize("words", every_parser())
def test_the_short_help_fits_on_one_screen(words: str) -> None:
    lines = short_help(every_parser()[words]).splitlines()
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("words", every_parser())
def test_the_help_of_a_flag_has_at_most_twelve_words(words: str) -> None:
    command = every_parser()[words]
    for action in command._actions:
        if action.option_strings and action.help not in (None, argparse.SUPPRESS):
            text = command._get_formatter()._expand_help(action).split(" (default")[0]
            purpose = text.split(":")[0]
            assert len(purpose.split()) <= 12, action.option_strings


def test_every_command_is_in_one_group() -> None:
    groups = verbs_by_group()
    assert tuple(groups) == GROUPS
    assert [name for names in groups.values() for name in names] == list(commands_of(parser()))


def test_the_short_and_the_full_help_end_with_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hpl", "-h"]) == 0
    short = capsys.readouterr().out
    assert main(["run", "hpl", "--help"]) == 0
    full = capsys.readouterr().out
    assert len(full) > 2 * len(short)
    assert "--ndiv" in full
    assert "--ndiv" not in short
    assert full.count("--swap-threshold") == 1


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_explained(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    from mxpeak.bench.registry import BENCHMARKS

    assert main(["help", "settings"]) == 0
    shown = capsys.readouterr().out
    assert all(o.variable in shown for benchmark in BENCHMARKS.values() for o in options(benchmark.config))


def test_an_unknown_topic_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "exitcodes"]) == 2
    assert "use exit-codes, settings, submit" in capsys.readouterr().err
