"""Lay out pages in a browser without a window, and find parts that are too wide, broken or unlabeled.

One page contains all pages of a check as frames, so that the browser starts once.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Names of the browser's command; the variable CHROMIUM sets another one.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
#: Widths in pixels: a phone, a screen, and A4 paper without its margins.
WIDTHS = {"telephone": 390, "screen": 1200, "paper": 718}
LIMIT_S = 60.0

#: The JavaScript that checks a frame and returns one sentence per fault.
FAULTS = r"""
function faults(page, paper) {
  const view = page.defaultView, found = [];
  if (paper) for (const sheet of page.styleSheets) for (const rule of sheet.cssRules) if (rule.media) {
    const asked = rule.media.mediaText;
    rule.media.mediaText = asked === "print" ? "all" : asked.includes("screen") ? "not all" : asked;
  }
  if (!paper) for (const one of page.querySelectorAll("details")) one.open = true;
  const wide = page.documentElement.clientWidth;
  const scrolls = element => element.closest(".wide, pre") !== null;
  if (page.documentElement.scrollWidth > wide + 1) found.push(`the page is ${page.documentElement.scrollWidth} wide`);
  for (const element of page.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1) && !scrolls(element))
      found.push(`${element.tagName} ${element.className.baseVal ?? element.className} ends at ${box.right}`);
  }
  const walker = page.createTreeWalker(page.body, 4);
  for (let node; (node = walker.nextNode()); ) {
    if (node.parentElement.closest("script, style")) continue;
    for (const word of node.data.matchAll(/\S+/g)) {
      if (word[0].length > 24) continue;  // paths and commands may go on in the next line
      const range = page.createRange();
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1 && !/[-/,=]/.test(word[0]))
        found.push(`"${word[0]}" is broken`);
    }
  }
  for (const plot of page.querySelectorAll("svg")) {
    const name = plot.getAttribute("aria-label") ?? "", edge = plot.getBoundingClientRect();
    if (!name) found.push("a drawing has no name");
    const labels = [...plot.querySelectorAll(".label")].filter(label => label.textContent.trim());
    if (labels.length !== 2) found.push(`${name}: ${labels.length} of 2 axes have a label`);
    const texts = [...plot.querySelectorAll("text")].filter(one => one.textContent);
    if (plot.querySelectorAll(".tick").length < 4) found.push(`${name}: too few ticks`);
    const boxes = texts.map(one => one.getBoundingClientRect());
    boxes.forEach((box, k) => {
      if (!box.width) return;
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.bottom > edge.bottom + 1)
        found.push(`${name}: "${texts[k].textContent}" is cut off`);
      boxes.slice(k + 1).forEach((other, j) => {
        const beside = box.left >= other.right || other.left >= box.right;
        if (!beside && box.top + 2 < other.bottom && other.top + 2 < box.bottom)
          found.push(`${name}: "${texts[k].textContent}" is over "${texts[k + 1 + j].textContent}"`);
      });
      const size = parseFloat(view.getComputedStyle(texts[k]).fontSize) * edge.width / plot.viewBox.baseVal.width;
      if (size < 8) found.push(`${name}: letters of ${size.toFixed(1)} pixels`);
    });
  }
  for (const element of page.querySelectorAll("[src], [href], [srcset], [data], [poster]"))
    for (const name of ["src", "href", "srcset", "data", "poster"])
      if (element.hasAttribute(name) && !/^(#|blob:|data:)/.test(element.getAttribute(name)))
        found.push(`asks for ${element.getAttribute(name)}`);
  for (const button of page.querySelectorAll("button")) if (button.hidden) found.push("a button has no script");
  for (const link of page.querySelectorAll("a[download]"))
    if (!link.href.startsWith("blob:")) found.push("a file to save has no content");
  for (const sheet of page.styleSheets) for (const rule of sheet.cssRules)
    if (/url\(|@import/.test(rule.cssText)) found.push(`asks for ${rule.cssText}`);
  return [...new Set(found)];
}
"""


def browser() -> str | None:
    """Return the browser of this machine or None: CHROMIUM, one of the usual names, or Playwright's browser."""
    if named := os.environ.get("CHROMIUM"):
        return named
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    found = [str(file) for name in ("chrome", "headless_shell") for file in sorted(kept.glob(f"chromium*/*/{name}"))]
    return next(filter(None, [*map(shutil.which, NAMES), *found]), None)


def faults(pages: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """Return the faults of each page at each width by keys such as `name on a telephone`, with one browser."""
    frames = [
        f'<iframe data-name="{html.escape(name)} on a {where}" style="width: {width}px; height: 2000px" '
        f'data-paper="{where == "paper"}" srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for where, width in WIDTHS.items()
    ]
    script = (
        f"<script>{FAULTS} addEventListener('load', () => {{ const all = {{}};"
        "for (const frame of document.querySelectorAll('iframe'))"
        "all[frame.dataset.name] = faults(frame.contentDocument, frame.dataset.paper === 'True');"
        "document.body.textContent = 'FOUND' + JSON.stringify(all) + 'END'; });</script>"
    )
    wrapper = folder / "frames.html"
    wrapper.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{"".join(frames)}{script}', encoding="utf-8")
    text = html.unescape(_dom(wrapper, folder))
    found = re.search(r"FOUND(\{.*\})END", text, re.DOTALL)
    assert found, f"the browser gave no answer: {text[-2000:]}"
    answer: dict[str, Any] = json.loads(found[1])
    assert len(answer) == len(frames)
    return answer


def _dom(page: Path, folder: Path) -> str:
    """Return the page after its scripts have run."""
    command = [
        browser() or "", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
        "--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}",
        "--window-size=1300,2100", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
