"""Create the screenshots of README and docs from one run of all benchmarks, with a headless Chromium.

mkdir run && mxpeak --out run > run/scoreboard.txt && python tools/pictures.py run
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

IMAGES = Path(__file__).parents[1] / "docs" / "images"
#: Possible names of the browser; the variable CHROMIUM can name another one.
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")

#: A page that shows the scoreboard in a terminal of 80 columns.
TERMINAL = """<!DOCTYPE html><meta charset="utf-8">
<style>
  body {{ margin: 0; background: #0d1117; color: #e6edf3; }}
  pre {{ margin: 18px 22px; font: 15px/1.4 "DejaVu Sans Mono", monospace; }}
  b {{ color: #3fb950; }}
</style>
<pre>$ mxpeak
{text}</pre>
"""
#: A page that shows the report on a large screen and, scrolled down, on a telephone.
PAGES = """<!DOCTYPE html><meta charset="utf-8">
<style>
  body {{ margin: 0; display: flex; gap: 12px; background: #999; }}
  iframe {{ border: 0; height: 1180px; background: #fff; }}
</style>
<iframe style="width: 1000px" srcdoc="{page}"></iframe>
<iframe style="width: 390px" srcdoc="{page}"></iframe>
<script>
  addEventListener("load", () => {{
    const page = document.querySelectorAll("iframe")[1].contentDocument;
    const roofs = [...page.querySelectorAll("h3, h4, figcaption")].filter(one => one.textContent.includes("Roofline"));
    (roofs[0] ?? page.body).scrollIntoView();
  }});
</script>
"""


def picture(name: str, page: str, width: int, height: int) -> None:
    """Save a screenshot of a page in a browser of this size as docs/images/NAME.png."""
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        sys.exit(f"no browser: none of {', '.join(NAMES)} is on the PATH; set CHROMIUM")
    with TemporaryDirectory() as folder:
        file, screenshot = Path(folder) / "page.html", Path(folder) / "made.png"
        file.write_text(page, encoding="utf-8")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}", f"--screenshot={screenshot}", file.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        shutil.copy(screenshot, IMAGES / name)
    if shutil.which("pngquant"):  # reduces the file to a third
        subprocess.run(["pngquant", "--force", "--ext", ".png", "160", str(IMAGES / name)], check=True)


def main() -> None:
    """Create both screenshots from the run in the given folder."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    text = (folder / "scoreboard.txt").read_text(encoding="utf-8").strip()
    coloured = html.escape(text).replace("PASSED", "<b>PASSED</b>")
    picture("scoreboard.png", TERMINAL.format(text=coloured), 780, 60 + 21 * (text.count("\n") + 2))
    picture("report.png", PAGES.format(page=html.escape((folder / "report.html").read_text("utf-8"))), 1402, 1180)


if __name__ == "__main__":
    main()
