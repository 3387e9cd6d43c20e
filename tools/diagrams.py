"""Draw the diagrams of the algorithm pages as SVG:  python tools/diagrams.py

Each diagram is one function.  Colors follow the reader's light or dark mode.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parents[1] / "docs" / "images" / "algorithms"

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .small { font-size: 11px; } .title { font-weight: 600; } .light { fill: #ffffff; }
  .line { stroke: #57606a; fill: none; stroke-width: 1.5; } .frame { stroke: #57606a; fill: none; }
  .a { fill: #2f6f9f; } .b { fill: #c0652b; } .c { fill: #4f8a4f; } .d { fill: #7d5ba6; }
  .pale { fill: #d0d7de; } .none { fill: none; stroke: #57606a; stroke-dasharray: 4 3; }
  marker path { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .line, .frame, .none { stroke: #9da7b3; } .pale { fill: #3d444d; }
    marker path { fill: #9da7b3; }
  }
"""


class Drawing:
    """A list of SVG elements with the few shapes that the diagrams need."""

    def __init__(self, width: int, height: int, description: str):
        self.width, self.height, self.description = width, height, description
        self.elements: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, kind: str = "frame", label: str = "", small: bool = False
    ) -> None:
        """Add a rectangle with a centered label."""
        self.elements.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="2"/>')
        if label:
            light = " light" if kind in "abcd" else ""
            self.text(x + w / 2, y + h / 2 + 4.5, label, f"{'small' if small else ''}{light}", "middle")

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Add one line of text."""
        self.elements.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind.strip()}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """Add an arrow along the points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.elements.append(f'<polyline class="line" points="{path}" marker-end="url(#head)"/>')

    def save(self, name: str) -> None:
        """Write the drawing to docs/images/algorithms/NAME.svg."""
        body = "\n".join(self.elements)
        (IMAGES / f"{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-label="{escape(self.description)}">\n'
            f"<style>{STYLE}</style>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
            f"{body}\n</svg>\n",
            encoding="utf-8",
        )


def block_cyclic() -> None:
    """Draw the 2-D block-cyclic layout and the parts of one step with look-ahead."""
    drawing = Drawing(
        720, 300, "A matrix of 6 by 6 blocks on a 2 by 2 grid, and the parts of one LU step with look-ahead"
    )
    side, x0, y0 = 40, 20, 40
    drawing.text(x0, 24, "Owner of each block, grid 2×2", "title")
    for i in range(6):
        for j in range(6):
            drawing.box(
                x0 + side * j, y0 + side * i, side - 2, side - 2, "abcd"[2 * (i % 2) + j % 2], f"{i % 2},{j % 2}", True
            )
    x0 = 330
    drawing.text(x0, 24, "Step 1 with look-ahead", "title")
    drawing.box(x0, y0, 240, side - 2, "pale", "finished rows of U", True)
    drawing.box(x0, y0 + side, side - 2, 5 * side - 2, "pale")
    drawing.box(x0 + side, y0 + side, side - 2, side - 2, "a", "A11", True)
    drawing.box(x0 + side, y0 + 2 * side, side - 2, 4 * side - 2, "a", "L21", True)
    drawing.box(x0 + 2 * side, y0 + side, 4 * side - 2, side - 2, "c", "U12 = L11⁻¹ A12", True)
    drawing.box(x0 + 2 * side, y0 + 2 * side, side - 2, 4 * side - 2, "b", "first", True)
    drawing.box(x0 + 3 * side, y0 + 2 * side, 3 * side - 2, 4 * side - 2, "d", "A22 −= L21 U12", True)
    drawing.text(x0 + 255, y0 + 110, "The next panel (first)", "small")
    drawing.text(x0 + 255, y0 + 126, "is updated before", "small")
    drawing.text(x0 + 255, y0 + 142, "the rest, factored", "small")
    drawing.text(x0 + 255, y0 + 158, "and sent while the", "small")
    drawing.text(x0 + 255, y0 + 174, "rest is updated.", "small")
    drawing.save("block-cyclic")


def split_update() -> None:
    """Draw the timeline of one HPL step with a split update."""
    drawing = Drawing(
        720,
        190,
        "Timeline of one step: the right part is updated while rows of the left part are exchanged, and conversely",
    )
    rows = {
        "device": [
            (0, 90, "c", "next panel"),
            (90, 230, "d", "UPDATE2, right part"),
            (320, 220, "b", "UPDATE1, left part"),
        ],
        "CPU": [(90, 110, "a", "factor panel")],
        "network": [(90, 100, "pale", "rows, left"), (202, 90, "a", "send panel"), (320, 110, "pale", "rows, right")],
    }
    for index, (name, spans) in enumerate(rows.items()):
        y = 45 + 42 * index
        drawing.text(20, y + 19, name)
        for start, width, kind, label in spans:
            drawing.box(110 + start, y, width - 2, 30, kind, label, True)
    drawing.arrow((110, 178), (660, 178))
    drawing.text(664, 182, "time", "small")
    drawing.save("split-update")


def refinement() -> None:
    """Draw the refinement loop of HPL-MxP."""
    drawing = Drawing(720, 230, "Factor in low precision, then GMRES in fp64, preconditioned with the factors")
    drawing.box(20, 60, 150, 60, "a", "L U ≈ A, low precision")
    drawing.box(220, 60, 130, 60, "b", "x = U⁻¹ L⁻¹ b")
    drawing.box(400, 60, 140, 60, "c", "r = b − A x, fp64")
    drawing.box(590, 60, 110, 60, "d", "done")
    drawing.box(400, 155, 140, 55, "b", "GMRES on (LU)⁻¹A")
    drawing.box(220, 155, 130, 55, "frame", "x += correction")
    drawing.text(20, 30, "O(n³) in low precision, then O(n²) per iteration in fp64", "title")
    drawing.arrow((172, 90), (216, 90))
    drawing.arrow((352, 90), (396, 90))
    drawing.arrow((542, 90), (586, 90))
    drawing.text(545, 82, "< 16", "small")
    drawing.arrow((470, 122), (470, 151))
    drawing.text(476, 141, "otherwise, at most 50 iterations", "small")
    drawing.arrow((398, 182), (354, 182))
    drawing.arrow((285, 153), (285, 140), (440, 140), (440, 124))
    drawing.save("refinement")


def multigrid() -> None:
    """Draw the V-cycle of four levels and the two orders of a sweep."""
    drawing = Drawing(720, 280, "A V-cycle over four levels, and the order of Gauss–Seidel rows: natural and in colors")
    drawing.text(20, 24, "V-cycle of four levels", "title")
    for level in range(4):
        y = 44 + 56 * level
        n = f"{104 >> level}³"
        drawing.text(20, y + 20, n, "small")
        x = 60 + 40 * level
        if level < 3:
            drawing.box(x, y, 62, 30, "a", "sweep", True)
            drawing.box(452 - 40 * level - 62, y, 62, 30, "a", "sweep", True)
            drawing.arrow((x + 31, y + 32), (x + 71, y + 54))
            drawing.arrow((452 - 40 * level - 71, y + 54), (452 - 40 * level - 31, y + 32))
        else:
            drawing.box(x, y, 452 - 2 * 40 * level - 60, 30, "a", "sweep", True)
    drawing.text(185, 84, "residual and restriction ↓", "small")
    drawing.text(215, 140, "↑ prolongation", "small")
    x0 = 500
    drawing.text(x0, 24, "Colored rows of one plane", "title")
    for i in range(6):
        for j in range(6):
            drawing.box(
                x0 + 32 * j, 44 + 32 * i, 30, 30, "abcd"[2 * (i % 2) + j % 2], str(1 + 2 * (i % 2) + j % 2), True
            )
    drawing.text(x0, 256, "Rows of one color are independent;", "small")
    drawing.text(x0, 272, "a plane uses 4 of the 8 colors.", "small")
    drawing.save("multigrid")


def norm_stages() -> None:
    """Draw the four stages of a distributed norm."""
    drawing = Drawing(720, 200, "Tile, rank, process row or column, scalar: the four stages of a norm")
    stages = [
        ("1  tile", "one pass per tile:", "sums per column", "a"),
        ("2  rank", "combine the tiles", "of one rank", "b"),
        ("3  grid", "reduce along the", "process columns", "c"),
        ("4  scalar", "reduce to one", "number on all ranks", "d"),
    ]
    drawing.text(20, 24, "Four stages of the one-norm", "title")
    for index, (name, first, second, kind) in enumerate(stages):
        x = 20 + 178 * index
        drawing.box(x, 50, 140, 40, kind, name)
        drawing.text(x, 116, first, "small")
        drawing.text(x, 132, second, "small")
        if index < 3:
            drawing.arrow((x + 142, 70), (x + 174, 70))
    drawing.text(
        20,
        170,
        "Stages 1 and 2 read the matrix once. Stages 3 and 4 communicate n/Q numbers, then one number.",
        "small",
    )
    drawing.save("norm-stages")


def emulated_product() -> None:
    """Draw the steps of an emulated fp64 product, from the digits of a row to the matrix C."""
    drawing = Drawing(720, 290, "Entries of a graded row as fixed-point integers, their residues, and INT8 products")
    drawing.text(20, 24, "One row of A, scaled: the digits of four entries", "title")
    for entry, shift in enumerate((0, 34, 68, 136)):
        y = 38 + 22 * entry
        drawing.box(20, y, 330, 18, "frame")
        drawing.box(20 + shift, y, 160, 18, "a", "53 bits", True)
    drawing.box(230, 34, 120, 92, "none")
    drawing.text(236, 142, "additional bits for graded rows", "small")
    drawing.text(20, 142, "p bits from the largest entry on", "small")
    drawing.text(400, 24, "n residues of each integer", "title")
    for index, modulus in enumerate(("256", "255", "253", "…", "m_n")):
        drawing.box(400 + 60 * index, 56, 54, 36, "b", modulus if index == 3 else f"mod {modulus}", True)
    drawing.arrow((352, 74), (396, 74))
    drawing.text(400, 110, "15 or 16 moduli for usual rows, 24 at most", "small")
    drawing.box(20, 190, 190, 44, "c", "n exact INT8 products")
    drawing.box(260, 190, 200, 44, "d", "Chinese remainder theorem")
    drawing.box(510, 190, 190, 44, "frame", "C − (A B), fp64")
    drawing.arrow((668, 96), (668, 166), (115, 166), (115, 186))
    drawing.arrow((212, 212), (256, 212))
    drawing.arrow((462, 212), (506, 212))
    drawing.text(
        20, 262, "Residues and sums are exact. Rounding to p bits and the last two steps have errors.", "small"
    )
    drawing.save("emulated-product")


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for draw in (block_cyclic, split_update, refinement, multigrid, norm_stages, emulated_product):
        draw()
