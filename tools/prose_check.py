"""Check the project's prose for patterns that its style guide forbids:  python tools/prose_check.py [--update] [FILE…]

Without files: README, CHANGELOG, docs/, the help of every command, the messages of exceptions, and the public
docstrings.  A pattern of ERRORS fails.  WARNINGS are counted per source; a count above the one in
tools/prose_warnings.json fails, so that counts can only fall.  --update stores the current counts.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS = Path(__file__).with_name("prose_warnings.json")
LONGEST = 30
#: Sections of numpydoc that list names with their descriptions.
ITEMIZED = {"Parameters", "Returns", "Raises", "Warns", "Attributes", "See Also"}
#: Classes that public functions return and no package exports: their modules and names.
RETURNED = (("mxpeak.records", "Result"), ("mxpeak.records", "Caution"))

#: Patterns that are never right, with the words to use instead.
ERRORS = {
    r"\bsisters?\b": "peers, the other ranks",
    r"\bbeside\b": "next to, compared with, in addition to",
    r"\bmend(s|ed|ing)?\b": "fix, correct",
    r"\banew\b": "again",
    r"\bin turns\b": "alternately, interleaved",
    r"\bnobody\b|\bwhoever\b": "name the actor",
    r"\bat the door\b|\bthe house\b|\bin words\b|\bheld against\b": "the field's words",
    r"\b(since then|the day before|a day later)\b": "the present behavior only",
    r"\bbut for\b": "except for",
    r"\bfor want of\b": "because … is missing",
    r"\bat the (least|most)\b": "at least, at most",
    r"\b(\d+|one|two|many|several|more) sides\b": "right-hand sides",
}
#: Patterns that are usually wrong.
WARNINGS = {
    r"^(What|Who|Whose|Whatever|Whoever)\b(?!.*\?)": "a noun instead of a clause",
    r"(?<=[a-z,;:] )(what|whatever|whoever)\b": "a noun instead of a clause",
    r"\b(told|tells?|says?|said|hears?|knows?)\b": "prints, records, states, detects",
    r"\b(stands?|stood|lies?)\b": "is, is stored",
    r"\bgo(es)? on\b": "continues",
    r"(?<![A-Za-z])[Ww]here\b(?! [a-z]_?\w* (=|is))": "if, when",
    r", (for|else) (it|they|the|a|there|no)\b": "because, otherwise",
    r", too\b": "also, before the verb",
    r"\bsome \d": "about",
    r"\bone by one\b": "individually",
}


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the source it is from."""

    source: str
    line: int
    text: str


def sentences(source: str, text: str, first_line: int = 1) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown text, without code, tables and headings."""
    paragraph: list[str] = []
    start, in_code = first_line, False
    for number, line in enumerate([*text.splitlines(), ""], first_line):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            line = ""
        item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        if in_code or item or not line.strip() or line.startswith(("|", "!", "    ", "#", "<!--", ">>>")):
            if paragraph:
                joined = re.sub(r"`[^`]*`", "`x`", " ".join(paragraph))
                joined = re.sub(r"\]\([^)]*\)", "]", joined)
                for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[(])", joined):
                    yield Sentence(source, start, sentence)
                paragraph = []
            if not item:
                continue
            line = line[item.end() :]
        if not paragraph:
            start = number
        paragraph.append(line.strip())


def prose_of(docstring: str) -> str:
    """Return the prose of a numpydoc docstring at the same lines: without headings, names, types and examples."""
    lines, section = docstring.splitlines(), ""
    kept = []
    for line, below in zip(lines, [*lines[1:], ""]):
        underlined = bool(line) and bool(below) and not below.strip("-")
        section = line if underlined else section
        if underlined or section == "Examples" or (line and not line.strip("-")):
            kept.append("")
        elif section in ITEMIZED:
            kept.append(line[4:] if line.startswith("    ") else "")
        else:
            kept.append(line)
    return "\n".join(kept)


def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module or of a package's `__init__.py`."""
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def definition(module: str, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """Return the definition of a public name; follow imports, and use the last of several overloads."""
    tree = tree_of(module)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    if found:
        return found[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return definition(node.module, name)
    return None


def exported(module: str) -> list[str]:
    """Return the names in `__all__` of a module, or its public functions and classes if it has no `__all__`."""
    tree = tree_of(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in dict.fromkeys(found) if not name.startswith("_")]


def public_names() -> dict[str, tuple[str, str]]:
    """Return the module and the name of every public function and class, by the name that users write."""
    stub = ast.parse((ROOT / "src" / "mxpeak" / "__init__.pyi").read_text(encoding="utf-8"))
    names = {name: (module, name) for module, name in RETURNED}
    for node in stub.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for name in (alias.name for alias in node.names):
            if node.module == "mxpeak.library":  # mxpeak.run and mxpeak.dask are modules
                module = f"{node.module}.{name}"
                names |= {f"{name}.{inner}": (module, inner) for inner in exported(module)}
            else:
                names |= {inner: (node.module, inner) for inner in {name, *exported(node.module)}}
    return names


def public_docstrings() -> Iterator[Sentence]:
    """Yield the sentences of the docstrings of public functions, classes and methods."""
    for shown, (module, name) in sorted(public_names().items()):
        node = definition(module, name)
        inner = node.body if isinstance(node, ast.ClassDef) else []
        methods = [
            function
            for function in inner
            if isinstance(function, ast.FunctionDef) and not function.name.startswith("_")
        ]
        for function in (node, *methods):
            if function is not None and (text := ast.get_docstring(function)):
                source = f"docstring of {shown}" + (f".{function.name}" if function is not node else "")
                yield from sentences(source, prose_of(text), function.body[0].lineno)


def help_texts() -> Iterator[Sentence]:
    """Yield the help of every argument of every command."""
    sys.path.insert(0, str(Path(__file__).parent))
    from site_hooks import commands, help_of

    for words, command in commands():
        shown = (action for action in command._actions if action.help != argparse.SUPPRESS)
        for text in (command.description or "", *(help_of(command, action) for action in shown)):
            yield from sentences(f"help of {words}", text)


def error_texts() -> Iterator[Sentence]:
    """Yield the messages of the exceptions that the package raises, with `x` for each inserted value, by clause."""
    for file in sorted((ROOT / "src" / "mxpeak").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for clause in "; ".join(map(_text, node.exc.args)).split("; "):
                    yield from sentences(f"errors of {file.relative_to(ROOT)}", clause, node.lineno)


def _text(node: ast.expr) -> str:
    """Return the text of a string literal; empty if the node is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "`x`" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def project() -> Iterator[Sentence]:
    """Yield every sentence that is checked without arguments."""
    for file in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield from sentences(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    yield from help_texts()
    yield from error_texts()
    yield from public_docstrings()


def main(arguments: list[str]) -> int:
    """Print what is found, and return 1 if the check fails."""
    files = [Path(name) for name in arguments if not name.startswith("-")]
    if files:
        texts = [sentence for file in files for sentence in sentences(str(file), file.read_text(encoding="utf-8"))]
    else:
        texts = list(project())
    failed, counts, shown = False, dict.fromkeys((sentence.source for sentence in texts), 0), []
    for sentence in texts:
        for pattern, advice in ERRORS.items():
            if match := re.search(pattern, sentence.text, re.IGNORECASE):
                failed = True
                print(f"{sentence.source}:{sentence.line}: ERROR “{match[0]}”: {advice}")
        matches = ((re.search(pattern, sentence.text), advice) for pattern, advice in WARNINGS.items())
        advices = [f"“{match[0]}”: {advice}" for match, advice in matches if match]
        if len(sentence.text.split()) > LONGEST:
            advices.append(f"{len(sentence.text.split())} words: at most {LONGEST}")
        counts[sentence.source] += len(advices)
        shown += [(sentence.source, f"{sentence.source}:{sentence.line}: {advice}") for advice in advices]
    if "--update" in arguments:
        kept = {name: count for name, count in counts.items() if count}
        COUNTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return int(failed)
    allowed = json.loads(COUNTS.read_text(encoding="utf-8")) if not files else {}
    for source, text in shown:
        if files or counts[source] > allowed.get(source, 0):
            print(text)
    risen = [name for name, count in counts.items() if count > allowed.get(name, 0)]
    total = sum(counts.values())
    print(f"{len(texts)} sentences, {total} warnings, {1000 * total / max(1, len(texts)):.0f} per 1,000")
    if risen and not files:
        print(f"more warnings than tools/prose_warnings.json allows: {', '.join(risen)}")
    return int(failed or (bool(risen) and not files))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
