"""Prepare a release, or build one and test it; nothing is published.

python tools/release prepare 0.1.0 2026-12-01   sets the version and the date, and completes the changelog
python tools/release build v0.1.0               builds the tag and writes the files of the release to dist/
python tools/release build                      rehearses the build of the current commit

docs/project/release.md is the checklist.
"""

from __future__ import annotations

import argparse
import datetime
import re
from pathlib import Path

from artifacts import build
from prepare import prepare

ROOT = Path(__file__).parents[2]


def version(text: str) -> str:
    """Parse a version such as 0.1.0."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version; use three numbers, such as 0.1.0")
    return text


def date(text: str) -> str:
    """Parse a date such as 2026-12-01."""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date; use the form 2026-12-01") from None


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="set the version and the date, and complete the changelog")
    preparing.add_argument("version", type=version)
    preparing.add_argument("date", type=date)
    building = commands.add_parser("build", help="build and test the files of a release")
    building.add_argument("ref", nargs="?", default="HEAD", help="a tag, or a commit for a rehearsal (default HEAD)")
    building.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files (default dist)")
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(ROOT, args.version, args.date)
    else:
        build(ROOT, args.ref, args.out)


if __name__ == "__main__":
    main()
