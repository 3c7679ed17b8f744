"""The style of the report: one column, light or dark as the reader prefers, and on paper."""

from typing import Final

STYLE: Final = """
:root {
  --paper: #f6f5f1; --card: #fff; --ink: #1d2125; --soft: #5d656d; --faint: #e4e2db;
  --warn: #a25500; --warn-paper: #fdf0dc; --stop: #b3261e;
  --c1: #12706a; --c2: #d9822b; --c3: #3f6fb5; --c4: #8c4a8f; --c5: #87952c; --c6: #b8475a;
  --c0: #a9adb1; color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #101316; --card: #181c20; --ink: #e8e6e1; --soft: #9aa3ab; --faint: #2b3137;
    --warn: #f2b05e; --warn-paper: #2e2414; --stop: #ff8a7d;
    --c1: #3aa398; --c2: #e09a4d; --c3: #6d9be0; --c4: #b57fb8; --c5: #a9b854; --c6: #dd7486;
    --c0: #6b7279;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 72rem; padding: 1.25rem 1.25rem 3rem; background: var(--paper);
  color: var(--ink); font: 0.9375rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
h1 { font-size: 1.25rem; margin: 0; }
h2 { font-size: 1.0625rem; margin: 0 0 0.25rem; overflow-wrap: anywhere; }
h3 { font-size: 0.875rem; margin: 1rem 0 0.25rem; color: var(--soft); font-weight: 600; }
p { margin: 0.25rem 0; }
.about { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--faint); border-radius: 12px;
  padding: 1.125rem 1.375rem; margin-top: 0.875rem; min-width: 0; }
.note { background: var(--warn-paper); color: var(--warn); border-radius: 8px;
  padding: 0.5rem 0.75rem; margin-top: 0.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: 0.25rem 0 0.25rem 0.75rem; white-space: nowrap;
  border-bottom: 1px solid var(--faint); font-weight: 400; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-size: 0.8125rem; }
td.bad { color: var(--stop); }
.plot { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--faint); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.dashed { stroke-dasharray: 5 5; }
.line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); } .line.c3 { stroke: var(--c3); }
.line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); } .line.c6 { stroke: var(--c6); }
.line.c0 { stroke: var(--c0); }
.key { margin-right: 1.25rem; color: var(--soft); font-size: 0.8125rem; white-space: nowrap; }
.key i { display: inline-block; width: 1.25rem; border-top: 3px solid; margin-right: 0.375rem;
  vertical-align: 3px; }
.key i.dashed { border-top-style: dashed; }
.key i.c1 { border-color: var(--c1); } .key i.c2 { border-color: var(--c2); }
.key i.c3 { border-color: var(--c3); } .key i.c4 { border-color: var(--c4); }
.key i.c5 { border-color: var(--c5); } .key i.c6 { border-color: var(--c6); }
.key i.c0 { border-color: var(--c0); }
@media print { section { break-inside: avoid; } body { max-width: none; } }
"""
