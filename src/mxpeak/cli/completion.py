"""`mxpeak completion SHELL`: print a script that completes verbs, benchmarks and flags without starting Python."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mxpeak.errors import ExitCode

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  eval "$(mxpeak completion bash)"
  mxpeak completion zsh > ~/.zfunc/_mxpeak
  mxpeak completion fish > ~/.config/fish/completions/mxpeak.fish
"""

BASH = """\
_mxpeak() {{
  local before="${{COMP_WORDS[*]:1:$((COMP_CWORD-1))}}" now="${{COMP_WORDS[COMP_CWORD]}}" known=""
  case "$before " in
{cases}
  esac
  local IFS=$'\\n'
  COMPREPLY=($(IFS=' '; compgen -W "$known" -- "$now"))
  [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=($(compgen -f -- "$now"))
}}
complete -o filenames -F _mxpeak mxpeak
"""
ZSH = """\
#compdef mxpeak
autoload -U +X bashcompinit && bashcompinit
"""
#: zsh runs the file when it first completes mxpeak, so the file also has to complete this first word.
ZSH_END = """\
if [[ ${funcstack[1]} == _mxpeak ]]; then _bash_complete -o filenames -F _mxpeak; fi
"""
FISH = """\
function __mxpeak_after
  set -l words (commandline -opc)[2..-1]
  string match -q -- "$argv *" "$words "
end
function __mxpeak_at
  set -l words (commandline -opc)[2..-1]
  test "$words" = "$argv"
end
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `completion`."""
    parser.description = "Print a shell script that completes commands, benchmarks and flags."
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="shell: bash, zsh or fish")
    parser.set_defaults(action=completion)


def completion(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Print the completion script of the selected shell."""
    if session.rank == 0:
        words = dict(words_after(args.full_parser()))
        cases = "\n".join(f"    '{way}'*) known='{' '.join(followers)}' ;;" for way, followers in words.items())
        bash = BASH.format(cases=cases)
        print({"bash": bash, "zsh": ZSH + bash + ZSH_END, "fish": _fish(words)}[args.shell], end="")
    return ExitCode.VALID


def words_after(parser: argparse.ArgumentParser, way: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each sequence of subcommands and the words that may follow it. The longest sequences come first.

    The words are subcommands, the choices of positional arguments, the default of `words`, and flags.
    """
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for name, sub in action.choices.items():
            yield from words_after(sub, f"{way}{name} ")
    choices = [action.choices or () for action in parser._actions if not action.option_strings]
    names = [str(name) for name in chain(*choices, parser.get_default("words") or ())]
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    yield way, [*names, *flags]


def _fish(words: dict[str, list[str]]) -> str:
    lines = []
    for way, followers in words.items():
        where = "at" if any(other != way and other.startswith(way) for other in words) else "after"
        for word in followers:
            option = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c mxpeak -n '__mxpeak_{where} {way.strip()}' {option}")
    return FISH + "\n".join(lines) + "\n"
