"""Generate the parts of the documentation site that depend on the code. MkDocs calls these hooks.

The reference pages of the command line, the settings, the result file and the modules are generated for the site and
are not files of the repository. Links to files outside docs/ are replaced by links to the repository's host.
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import module_table
from mkdocs.structure.files import File

from mxpeak import __version__
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.main import parser
from mxpeak.options import as_text, options

#: The commit or tag of the site. A site of the main branch has links for editing, and names no version.
REF = os.environ.get("DOCS_REF", "main")
HOST = f"https://github.com/mxpeak/mxpeak/blob/{REF}/"
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)")


def on_config(config: Any, **_: Any) -> Any:
    """Show the version in the title of a site that is not built from the main branch."""
    if REF != "main":
        config.site_name, config.edit_uri = f"mxpeak {__version__}", ""
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links such as ../README.md to the repository's host; links within docs/ stay."""

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[2]))
        return match[0] if path.startswith("docs/") else f"{match[1]}{HOST}{path}"

    return LINK.sub(target, markdown)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the generated pages."""
    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def pages() -> dict[str, str]:
    """Return every generated page by its path in docs/."""
    texts = {f"reference/command-line/{name}.md": text for name, text in command_pages().items()}
    texts["reference/command-line/index.md"] = command_index()
    texts["reference/settings.md"] = settings_page()
    texts["reference/result-file.md"] = result_page()
    texts["reference/modules.md"] = (
        f"# Modules\n\nThis page lists every module with the first line of its docstring.\n\n{module_table.table()}"
    )
    return texts


def cell(text: str) -> str:
    """Return a text that a cell of a table can hold."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# --- command line -----------------------------------------------------------------------------------------------


def subcommands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers below a parser, by name."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command that takes flags, with the words that call it."""
    for verb, command in subcommands(parser()).items():
        below = subcommands(command)
        if below:
            for name, inner in below.items():
                yield f"{verb} {name}", inner
        else:
            yield verb, command


def command_pages() -> dict[str, str]:
    """Return a page per command."""
    texts = {}
    for words, command in commands():
        parts = [f"# mxpeak {words}\n\n{command.description or ''}\n"]
        for group in command._action_groups:
            rows = [
                (f"`{flags_of(action)}`", cell(help_of(command, action)))
                for action in group._group_actions
                if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
            ]
            if rows:
                parts.append(f"## {(group.title or 'options').capitalize()}\n\n{table(('flag', 'meaning'), rows)}")
        if command.epilog:
            parts.append(f"## Examples\n\n```text\n{command.epilog.rstrip()}\n```\n")
        texts[words.replace(" ", "-")] = "\n".join(parts)
    return texts


def flags_of(action: argparse.Action) -> str:
    """Return the spellings of a flag, or the name of an argument."""
    return ", ".join(action.option_strings) or str(action.metavar or action.dest)


def help_of(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of one argument with its placeholders filled in."""
    return command._get_formatter()._expand_help(action) if action.help else ""


def command_index() -> str:
    """Return the list of commands."""
    rows = [
        (f"[`mxpeak {words}`]({words.replace(' ', '-')}.md)", cell((command.description or "").split(". ")[0]))
        for words, command in commands()
    ]
    head = "# Command line\n\nThis page lists all commands. Each linked page lists the flags of one command.\n\n"
    return head + table(("command", "purpose"), rows)


# --- settings ---------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the table of settings: flag, variable, key, default, benchmarks."""
    rows: dict[str, list[Any]] = {}
    for name, benchmark in BENCHMARKS.items():
        for o in options(benchmark.config):
            rows.setdefault(o.name, [o, []])[1].append(name)
    lines = [
        (
            f"`{', '.join(o.flags)}`",
            f"`{o.variable}`",
            f"`{o.name}`",
            "" if o.default is None else f"`{cell(as_text(o.default))}`",
            "all" if len(names) == len(BENCHMARKS) else ", ".join(names),
            cell(o.help.replace("%%", "%")),
        )
        for o, names in sorted(rows.values(), key=lambda row: row[0].name)
    ]
    head = ("flag", "variable", "key in a file", "default", "benchmarks", "meaning")
    return (
        "# Settings\n\nThis page lists every setting of `mxpeak run`. For each setting, mxpeak uses the first of these "
        "sources that contains a value:\n\n1. flag\n2. environment variable\n3. file of `--config`\n"
        "4. file of `--dat`\n5. values stored by `mxpeak tune`\n6. default\n\nThe default can depend on the benchmark "
        f"and on the device. `--dry-run` prints the resolved values.\n\n{table(head, lines)}"
    )


# --- result file ------------------------------------------------------------------------------------------------


def result_page() -> str:
    """Return the keys of a result file, from the JSON schema."""
    schema = json.loads((resources.files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8"))
    parts = [f"# Result file\n\n{RESULT_INTRODUCTION}\n{schema['description']}\n\n{RESULT_CONVENTIONS}"]
    for name, definition in sorted(schema["$defs"].items(), key=lambda one: one[0].startswith("study")):
        if "properties" in definition:
            text = definition.get("description", "")
            head = ("key", "type", "required", "meaning")
            parts.append(f"## {name}\n\n{text}\n\n{table(head, list(keys(definition)))}")
    return "\n".join(parts)


RESULT_INTRODUCTION = """This page is for users who read `result.json`, directly or with a program.
It lists every key with its unit.

```sh
mxpeak run hpl -N 4000 --json result.json
python -c "import json; print(json.load(open('result.json'))['results'][0]['result']['rate_flops'])"
```
"""
RESULT_CONVENTIONS = """- `a.b` means the key `b` in the object `a`.
- `[]` means every item of a list, and `*` means every key of an object.
- Required keys are always present in their object. The other keys depend on the benchmark, the options and the machine.
- If the type of a key is *not checked*, mxpeak does not validate the type of its value.

[What the numbers mean](../explanation/numbers.md) defines rates, checks and limits. [Phases and telemetry](phases.md)
defines the phases. The [glossary](glossary.md) defines the terms.
"""


def keys(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, ...]]:
    """Yield a row per key of an object, each followed by the keys below it."""
    required = schema.get("required", ())
    for key, value in schema.get("properties", {}).items():
        below = f"{path}{key}"
        yield f"`{below}`", kind(value), "yes" * (key in required), cell(value.get("description", ""))
        yield from keys_below(value, below)


def keys_below(value: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the keys in a value: an object, a list of objects, or one of several alternatives."""
    yield from keys(value, f"{path}.")
    for alternative in (*value.get("oneOf", ()), *value.get("anyOf", ())):
        yield from keys_below(alternative, path)
    for part, place in (("items", "[]"), ("additionalProperties", ".*")):
        if part in value:
            yield from keys_below(value[part], f"{path}{place}")


def kind(value: dict[str, Any]) -> str:
    """Return the type of a value of the schema in a few words."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in OBJECTS else kind(DEFINITIONS[name])
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if "const" in value:
        return f"`{value['const']}`".replace("False", "false")
    if "type" not in value and ("oneOf" in value or "anyOf" in value):
        return either(kind(one) for one in value.get("oneOf") or value["anyOf"])
    names = value.get("type", "object" if "properties" in value or "required" in value else "not checked")
    return either(typed(name, value) for name in ([names] if isinstance(names, str) else names))


def typed(name: str, value: dict[str, Any]) -> str:
    """Return a type of the schema, with the type of the items that it contains."""
    if name == "array" and "items" in value:
        return f"list of {kind(value['items'])}"
    named = kind(value["additionalProperties"]) if "additionalProperties" in value else ""
    return f"object of {named}" if name == "object" and named.startswith("[") else name


def either(kinds: Iterable[str]) -> str:
    """Return alternative types; null is the last."""
    return " or ".join(sorted(dict.fromkeys(kinds), key=lambda one: one == "null"))


#: The definitions of the schema, and those that have a section of their own.
DEFINITIONS: dict[str, Any] = json.loads(
    (resources.files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8")
)["$defs"]
OBJECTS = frozenset(name for name, definition in DEFINITIONS.items() if "properties" in definition)
