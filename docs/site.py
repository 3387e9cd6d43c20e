"""What the site does with links that leave the documentation: to files of the repository they go to its host."""

from __future__ import annotations

import posixpath
import re
from typing import Any

HOST = "https://github.com/mxpeak/mxpeak/blob/main/"
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links such as ../README.md as they are on the host; those within docs/ stay."""

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[2]))
        return match[0] if path.startswith("docs/") else f"{match[1]}{HOST}{path}"

    return LINK.sub(target, markdown)
