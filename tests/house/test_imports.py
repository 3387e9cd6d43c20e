"""Test imports among tests, which import-linter does not check."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported(file: Path) -> list[str]:
    """Return every module that a file imports, also inside of functions; for `from a import b` both a and a.b."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return names


def is_test(module: str) -> bool:
    return module.startswith("tests.") and (module.rsplit(".", 1)[1].startswith("test_") or module == "tests.conftest")


def test_no_test_module_imports_another_or_conftest() -> None:
    wrong = {
        f"{file.relative_to(TESTS)}: {module}"
        for file in TESTS.rglob("*.py")
        for module in imported(file)
        if is_test(module) and (TESTS.parent / module.replace(".", "/")).with_suffix(".py").exists()
    }
    assert not wrong, "move what they share to tests/support:\n" + "\n".join(sorted(wrong))
