"""Style and script of the HTML pages, in light and dark mode, for phones, screens and paper."""

from __future__ import annotations

from mxpeak.foreign import printable

#: Content security policy: the page uses no network, and the browser blocks all external resources.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

#: Eight colors, on white and on black, that people with color blindness can distinguish. Dashes and markers also
#: differ.
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #59636e; --line: #d8dee4; --card: #f6f8fa;
  --bar: #3b7ddd; --good: #1a7f37; --bad: #cf222e;
  --c0: #0b62a4; --c1: #b0440c; --c2: #157a5b; --c3: #8b3a8f; --c4: #7a6000; --c5: #555; --c6: #c77; --c7: #888; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --faint: #9198a1;
  --line: #30363d; --card: #151b23; --bar: #58a6ff; --good: #3fb950; --bad: #f85149;
  --c0: #6cb6ff; --c1: #ff9e64; --c2: #5fd3a5; --c3: #e0a3e6; --c4: #e3c34a; --c5: #aaa; --c6: #a55; --c7: #888; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem;
  margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .6rem; } h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; border-top: 1px solid var(--line); padding-top: 1rem; }
p { margin: .3rem 0; } ul { margin: .3rem 0; padding-left: 1.2rem; }
.faint, .note, dt, summary { color: var(--faint); } .note { font-size: .85rem; max-width: 40rem; }
.big { font-size: 2rem; font-weight: 600; line-height: 1.2; margin: .2rem 0; }
.PASSED { color: var(--good); font-weight: 700; } .FAILED, .ABORTED, .SLOW { color: var(--bad); font-weight: 700; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; }
.card dl + dl, .card details dl { border-top: 1px solid var(--line); margin-top: .5rem; padding-top: .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
dd { margin: 0; min-width: 0; }
code { font: .9em ui-monospace, monospace; overflow-wrap: break-word; } code.command { user-select: all; }
button { font: inherit; font-size: .8rem; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 5px; padding: 0 .5rem; cursor: pointer; } a { color: var(--bar); }
pre { overflow-x: auto; }
table { border-collapse: collapse; margin: .4rem 0; } td, th { padding: .2rem .9rem .2rem 0; text-align: left;
  vertical-align: top; border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
th { color: var(--faint); font-weight: 500; } .number { text-align: right; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.value { overflow-wrap: anywhere; min-width: 9rem; max-width: 34rem; }
.wide { overflow-x: auto; max-width: 100%; }
.meter { display: block; width: 9rem; max-width: 100%; height: .5rem; margin-top: .45rem; border-radius: 3px;
  background: var(--line); } .meter i { display: block; height: 100%; border-radius: 3px; background: var(--bar); }
.meter.over { box-shadow: 3px 0 0 var(--bad); }
.lead { font-size: 1.1rem; margin: 0 0 .8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1.5rem; }
.figures:not(:has(> :nth-child(2))) { max-width: 40rem; }
figure { margin: 1rem 0; break-inside: avoid; min-width: 0; max-width: 40rem; } figcaption { font-weight: 600; }
details { margin: .6rem 0; } summary { cursor: pointer; } summary h2 { display: inline; border: 0; color: var(--ink); }
.plot { width: 100%; height: auto; display: block; } .plot .grid { stroke: var(--line); }
.plot text { fill: var(--ink); font: 12px system-ui, sans-serif; } .plot .label { fill: var(--faint); }
.plot .frame { fill: none; stroke: var(--faint); } .plot .trace { fill: none; stroke-width: 1.8; stroke: var(--c); }
.plot .dot { fill: var(--c); fill-opacity: .45; stroke: var(--c); } .plot .unseen { fill: transparent; }
.plot .heat { fill: var(--c); }
.plot .layer { fill: var(--c); } .plot .layer:hover { fill-opacity: .7; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; margin: .2rem 0; }
.legend li { font-size: .9rem; } .key { color: var(--c); } .key.line { display: inline-block; width: 1.6rem;
  border-top: 2px solid var(--c); vertical-align: middle; } .key.dashed { border-top-style: dashed; }
.ranks { margin: 0 1rem .4rem 0; display: inline-table; }
.ranks caption { text-align: left; color: var(--faint); white-space: nowrap; }
.ranks td { padding: .15rem .5rem; text-align: center; border: 1px solid var(--line);
  box-shadow: inset 0 -3px var(--c, transparent); }
@media (max-width: 640px) {
  body { margin: .8rem auto; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; }
  .plot text { font-size: 17px; } .second { display: none; } .meter { width: 4rem; }
  td, th { padding-right: .6rem; }
  .rows, .rows tbody { display: block; } .rows tr.head { display: none; }
  .rows tr { display: grid; grid-template-columns: 1fr 1fr; border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .rows td { border: 0; padding: .05rem .5rem .05rem 0; text-align: left; } .rows td.first { font-weight: 600; }
  .rows td[data-name]:not(.first)::before { content: attr(data-name) ": "; color: var(--faint); }
}
@media print {
  :root { color-scheme: light; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 9.5pt; margin: 0; max-width: none; padding: 0; } button, .screen { display: none; }
  .rows { font-size: 8pt; } .rows .meter { display: none; } .plot text { font-size: 15px; }
  .figures { grid-template-columns: 1fr 1fr; } h2, h3, figcaption { break-after: avoid; }
  tr, .card { break-inside: avoid; }
  details:not([open]) { display: none; }
}
""" + "".join(f".c{k} {{ --c: var(--c{k}); }}\n" for k in range(8))

#: Copies a command, and offers the JSON of the page for download. Without a script, a click selects the command.
SCRIPT = """
for (const button of document.querySelectorAll("button[data-copies]")) {
  button.hidden = false;
  button.onclick = () => {
    const command = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(command);
    (navigator.clipboard ? navigator.clipboard.writeText(command.textContent) : Promise.reject())
      .catch(() => document.execCommand("copy")).then(() => { button.textContent = "copied"; });
  };
}
const link = document.getElementById("as-file"), data = document.getElementById("mxpeak-result");
if (link && data) {
  link.href = URL.createObjectURL(new Blob([data.textContent], { type: "application/json" }));
  link.parentElement.hidden = false;
}
"""


def page(title: str, body: str, *, script: bool = False) -> str:
    """Return a complete HTML page from an escaped title and body. Terminal control characters are escaped."""
    title, body = printable(title), printable(body)
    code = f"<script>{SCRIPT}</script>" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n{body}\n{code}</body></html>\n"
    )
