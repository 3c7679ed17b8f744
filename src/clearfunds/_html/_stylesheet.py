"""The style of pages: one column, light or dark as the reader's system is, and for print."""

from typing import Final

STYLE: Final = """
:root {
  --paper: #f6f5f1; --card: #fff; --ink: #1d2125; --soft: #5d656d; --faint: #e4e2db;
  --calm: #12706a; --calm-paper: #e4f1ee; --warn: #a25500; --warn-paper: #fdf0dc;
  --stop: #b3261e; --stop-paper: #fdeae7; --hot: 214 92 28;
  --c1: #12706a; --c2: #d9822b; --c3: #3f6fb5; --c4: #8c4a8f; --c5: #87952c; --c6: #b8475a;
  --c0: #a9adb1;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", "JetBrains Mono", Menlo, Consolas,
    "DejaVu Sans Mono", monospace;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #101316; --card: #181c20; --ink: #e8e6e1; --soft: #9aa3ab; --faint: #2b3137;
    --calm: #5cc8ba; --calm-paper: #14292a; --warn: #f2b05e; --warn-paper: #2e2414;
    --stop: #ff8a7d; --stop-paper: #351c1a; --hot: 216 98 40;
    --c1: #3aa398; --c2: #e09a4d; --c3: #6d9be0; --c4: #b57fb8; --c5: #a9b854; --c6: #dd7486;
    --c0: #6b7279;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 72rem; padding: 0 1.25rem 3rem;
  background: var(--paper); color: var(--ink);
  font: 0.9375rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
    sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
h1, h2, h3, p, dl, dd, pre { margin: 0; padding: 0; }
a { color: var(--calm); }
header { padding: 1.25rem 0 1rem; }
header h1 { font-size: 1.125rem; letter-spacing: -0.01em; }
header p { color: var(--soft); font-size: 0.875rem; overflow-wrap: anywhere; }
.verdict, section, .tile {
  background: var(--card); border: 1px solid var(--faint); border-radius: 12px;
}
.verdict { padding: 1.125rem 1.375rem; border-left: 6px solid var(--faint); }
.verdict.calm { border-left-color: var(--calm); background: var(--calm-paper); }
.verdict.waits { border-left-color: var(--warn); background: var(--warn-paper); }
.verdict.stuck { border-left-color: var(--stop); background: var(--stop-paper); }
.verdict p + p { margin-top: 0.5rem; }
.headline { font-size: 1.3125rem; line-height: 1.35; letter-spacing: -0.01em; text-wrap: pretty; }
.headline b { font-weight: 650; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 0.875rem; margin: 0.875rem 0; }
.tile { padding: 0.75rem 1rem; min-width: 0; }
.tile dt { color: var(--soft); font-size: 0.8125rem; }
.tile dd { font-size: 1.5rem; font-weight: 600; letter-spacing: -0.02em; line-height: 1.3; }
.tile dd + dd { color: var(--soft); font-size: 0.8125rem; font-weight: 400; letter-spacing: 0; }
section { padding: 1.125rem 1.375rem; margin-bottom: 0.875rem; min-width: 0; }
h2 { font-size: 1.0625rem; overflow-wrap: anywhere; }
h3 { font-size: 0.875rem; margin: 1rem 0 0.25rem; color: var(--soft); font-weight: 600; }
.note { background: var(--warn-paper); color: var(--warn); border-radius: 8px;
  padding: 0.5rem 0.75rem; margin-top: 0.5rem; }
.about { color: var(--soft); max-width: 46rem; margin: 0.125rem 0 0.875rem; }
.about b { color: var(--ink); font-weight: 600; }
.more { color: var(--soft); font-size: 0.8125rem; margin-top: 0.625rem; }
.scroll { overflow-x: auto; margin: 0 -0.375rem; padding: 0 0.375rem; }
.name { font-family: var(--mono); font-size: 0.92em; overflow-wrap: anywhere;
  unicode-bidi: isolate; }
.name i { font-style: normal; color: var(--soft); }
/* Of a long name it is the end that says whose it is. */
:is(td, tbody th) .name { display: inline-flex; max-width: 22rem; white-space: pre;
  overflow: hidden;
  vertical-align: bottom; }
:is(td, tbody th) .name i { flex: 0 1 auto; min-width: 2rem; overflow: hidden;
  text-overflow: ellipsis; }
:is(td, tbody th) .name span { flex: 0 1 auto; overflow: hidden; text-overflow: ellipsis; }
:is(td, tbody th) .name i + span { flex: none; max-width: 100%; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 0.3125rem 0.75rem 0.3125rem 0; vertical-align: middle;
  border-bottom: 1px solid var(--faint); font-weight: 400; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { font-size: 0.8125rem; color: var(--soft); white-space: nowrap; vertical-align: bottom; }
.n { text-align: right; white-space: nowrap; }
.bad { color: var(--stop); }
.now { color: var(--soft); }
.now s { opacity: 0.8; }
b.good { color: var(--calm); }
svg { display: block; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--faint); }
.plot { width: 100%; height: auto; margin-bottom: 0.5rem; }
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); }
.c0 { color: var(--c0); }
.area { fill: currentColor; stroke: var(--card); stroke-width: 0.75;
  vector-effect: non-scaling-stroke; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.line.dashed { stroke-dasharray: 5 5; }
.legend { color: var(--soft); font-size: 0.8125rem; }
.legend span { margin-right: 1.25rem; white-space: nowrap; }
.legend i { display: inline-block; width: 1.25rem; border-top: 3px solid; margin-right: 0.375rem;
  vertical-align: 3px; }
.legend i.dashed { border-top-style: dashed; }
.key { display: inline-block; width: 0.75rem; height: 0.75rem; border-radius: 3px;
  margin-right: 0.5rem; vertical-align: -1px; background: currentColor; }
.range { width: 20rem; height: 1.5rem; }
.range .thin { stroke: var(--soft); stroke-width: 1; opacity: 0.6; }
.range .thick { stroke-width: 5; stroke-linecap: round; opacity: 0.55; }
.range .tick { stroke: var(--ink); stroke-width: 1.5; }
.range line.fine { stroke: var(--calm); } .range circle.fine { fill: var(--calm); }
.range line.late { stroke: var(--stop); } .range circle.late { fill: var(--stop); }
.range .target { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 3 2; }
.bar { width: 9rem; height: 0.625rem; }
.bar .part { fill: var(--c1); } .bar .blamed { fill: rgb(var(--hot)); }
.matrix { width: auto; }
.matrix td.cell { text-align: right; min-width: 5.5rem; padding: 0.375rem 0.625rem;
  border: 2px solid var(--card); border-radius: 6px; white-space: nowrap;
  background: rgb(var(--hot) / var(--heat)); }
.matrix td.none { color: var(--faint); }
.matrix thead th { text-align: right; padding: 0 0.625rem 0.375rem; }
.matrix thead .name i { display: block; white-space: pre; }
.matrix thead .name { display: inline-block; max-width: 11rem; overflow: hidden;
  text-overflow: ellipsis; }
.matrix tbody .name { max-width: 16rem; }
.matrix tfoot th, .matrix tfoot td { border-bottom: 0; padding-top: 0.375rem; }
.matrix tfoot td, .matrix td.sum { text-align: right; color: var(--soft);
  padding: 0.375rem 0.625rem; }
pre { font: 0.8125rem/1.5 var(--mono); background: var(--paper); border: 1px solid var(--faint);
  border-radius: 8px; padding: 0.75rem 1rem; overflow-x: auto; margin: 0.75rem 0 0;
  max-height: 24rem; }
kbd { font: 0.92em var(--mono); background: var(--paper); border: 1px solid var(--faint);
  border-radius: 5px; padding: 0.0625rem 0.3125rem; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: 0.875rem; max-width: 46rem; margin-top: 1.5rem; }
footer p + p { margin-top: 0.5rem; }
@media (max-width: 48rem) {
  .tiles { grid-template-columns: repeat(2, 1fr); }
  body { padding: 0 0.75rem 2rem; }
  section, .verdict { padding: 1rem; }
  .range { width: 12rem; height: 1rem; }
  .bar { width: 5rem; }
  :is(td, tbody th) .name { max-width: 12rem; }
}
@media print {
  body { max-width: none; background: none; }
  section { break-inside: avoid; }
  pre { max-height: none; white-space: pre-wrap; }
}
"""
