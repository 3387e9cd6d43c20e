"""Print the table of modules, from the first lines of their docstrings:  python tools/module_table.py

Layers are in the order of the import contract in pyproject.toml, the lowest first.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mxpeak"


def layers() -> list[str]:
    """Return the packages and modules of the first contract, the lowest layer first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    found = next(contract["layers"] for contract in contracts if contract["name"] == "layers")
    return [name for layer in reversed(found) for name in layer.split(" | ")]


@cache
def first_line(file: Path) -> str:
    """Return the first line of a module's docstring, as a cell of a table."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].replace("|", "\\|")


def rows(file: Path) -> list[str]:
    """Return the table row of a module, or the rows of a package and its modules."""
    if file.is_file():
        return [f"| `{file.relative_to(SOURCE)}` | {first_line(file)} |"]
    parts = [part for part in file.iterdir() if part.suffix == ".py" or (part / "__init__.py").exists()]
    modules = sorted(
        (part for part in parts if part.name != "__init__.py"), key=lambda part: (part.is_dir(), part.name)
    )
    name = f"| **`{file.relative_to(SOURCE)}/`** | **{first_line(file / '__init__.py')}** |"
    return [name, *(row for module in modules for row in rows(module))]


def table() -> str:
    """Return the complete table."""
    files = [SOURCE / name if (SOURCE / name).is_dir() else SOURCE / f"{name}.py" for name in layers()]
    lines = ["| file | what it is |", "|---|---|", *(row for file in files for row in rows(file))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
