"""The list of what a first use compiles has all that it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "first_use.py"


def test_the_largest_first_use_takes_nothing_that_is_not_listed() -> None:
    made = subprocess.run([sys.executable, str(SCRIPT), "0"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{made.stdout}{made.stderr}\nrun: python tools/first_use.py --write"
