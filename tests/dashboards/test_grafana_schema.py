"""The dashboards are what Grafana 11, 12 and 13 say that dashboards are.

Grafana publishes its schema as types of TypeScript, in `@grafana/schema`: each dashboard, each
panel and the options of each kind of panel are written as literals of these types, and the compiler
looks at them. A literal may have no property that its type does not have.
"""

from __future__ import annotations

import copy
import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.dashboards.queries import dashboards
from tests.programs import needs

pytestmark = [pytest.mark.long, needs("node", "npm")]

BUILT: Final = Path(__file__).parents[2] / "build" / "grafana-schema"
PACKAGES: Final = Path(__file__).with_name("schema")
VERSIONS: Final = (11, 12, 13)
KINDS: Final = {
    "bargauge": "BarGauge",
    "heatmap": "Heatmap",
    "stat": "Stat",
    "table": "Table",
    "text": "Text",
    "timeseries": "TimeSeries",
}
CUSTOM: Final = ("heatmap", "timeseries")
"""Kinds with a `FieldConfig` of their own, which our panels use."""

PLAIN: Final = """
// Words and numbers in place of enumerations, as JSON has them.
type Plain<T> = T extends string ? `${T}`
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return a folder with the packages."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT.parent / "grafana-schema.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in PACKAGES.iterdir():
            shutil.copy(path, BUILT)
        done = subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=BUILT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    if done.returncode:
        pytest.skip(f"Grafana's schema cannot be had: {' '.join(done.stderr.split())[:400]}")
    return BUILT


def literals(dashboard: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a dashboard with their types."""
    whole = copy.deepcopy(dashboard)
    for mark in whole["annotations"]["list"]:
        # The schema knows the marks of Grafana's own database alone. The source for Prometheus
        # takes its query from here (`prepareAnnotation` in @grafana/prometheus 13.2).
        del mark["expr"]
    for panel in whole.pop("panels"):
        kind = panel["type"]
        if kind == "row":
            yield "Plain<RowPanel>", panel
            continue
        yield "Plain<Panel>", panel
        # What has a default may be left out.
        yield f"Partial<Plain<{kind}.Options>>", panel.get("options", {})
        if kind in CUSTOM:
            custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
            yield f"Partial<Plain<{kind}.FieldConfig>>", custom
    yield "Plain<Dashboard>", whole


def faults(folder: Path, made: dict[str, dict[str, Any]], version: int, where: Path) -> list[str]:
    """Return what the compiler says."""
    types = "esm" if version == 11 else "types"
    raw = folder / "node_modules" / f"grafana{version}" / "dist" / types / "raw"
    prefix = "dashboard_" if version == 11 else ""
    lines = [
        f'import type {{ Dashboard, Panel, RowPanel }} from "{raw}/dashboard/x/{prefix}types.gen";'
    ]
    for kind, name in KINDS.items():
        prefix = f"{name}PanelCfg_" if version == 11 else ""
        lines.append(
            f'import type * as {kind} from "{raw}/composable/{kind}/panelcfg/x/{prefix}types.gen";'
        )
    lines.append(PLAIN)
    parts = [part for dashboard in made.values() for part in literals(dashboard)]
    for n, (kind, value) in enumerate(parts):
        lines.append(f"export const part{n}: {kind} = {json.dumps(value)};")
    (where / "dashboards.ts").write_text("\n".join(lines))
    index = folder / "node_modules" / f"grafana{version}" / "dist" / types / "index.d"
    settings: dict[str, Any] = {
        "files": ["dashboards.ts"],
        "compilerOptions": {
            "strict": True,
            "noEmit": True,
            "target": "es2022",
            "module": "esnext",
            "moduleResolution": "bundler",
            "types": [],
            "skipLibCheck": False,
            "paths": {"@grafana/schema": [f"{index}.{'mts' if version == 11 else 'ts'}"]},
        },
    }
    (where / "tsconfig.json").write_text(json.dumps(settings))
    compiler = folder / "node_modules" / ".bin" / "tsc"
    done = subprocess.run(
        [compiler, "-p", where], capture_output=True, text=True, check=False, timeout=300
    )
    return [line[:400] for line in done.stdout.splitlines() if not line.startswith(" ")]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dashboards_are_of_grafana_s_types(folder: Path, version: int, tmp_path: Path) -> None:
    assert faults(folder, dashboards(), version, tmp_path) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("path", "wrong", "said"),
    [
        (["titel"], "x", "titel"),
        (["panels", 1, "gridPos", "w"], "4", "'string' is not assignable"),
        (["panels", 1, "options", "colorMode"], "red", '"red"'),
        (["templating", "list", 1, "refresh"], 7, "7"),
        (["links", 0, "type"], "dashboard", '"dashboard"'),
    ],
    ids=["name", "number", "option", "variable", "link"],
)
def test_what_is_wrong_is_found(
    folder: Path, version: int, path: list[str | int], wrong: object, said: str, tmp_path: Path
) -> None:
    board = dashboards()["debt-overview.json"]
    assert board["panels"][1]["type"] == "stat"
    *steps, last = path
    place: Any = board
    for step in steps:
        place = place[step]
    place[last] = wrong
    assert any(said in line for line in faults(folder, {"x": board}, version, tmp_path))
