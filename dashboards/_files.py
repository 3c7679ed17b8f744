"""The files that this code generates, and their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from ._debt_overview import debt_overview
from ._panels import Board
from ._queues_and_store import queues_and_store
from ._relay_runtime import relay_runtime
from ._rules import ALERTS, RECORDINGS
from ._who_blocks_whom import who_blocks_whom
from ._yaml import rule_file

FOLDER: Final = Path(__file__).parent


def boards() -> list[Board]:
    """Return the dashboards, in the order of reading."""
    return [debt_overview(), who_blocks_whom(), queues_and_store(), relay_runtime()]


def generated() -> dict[str, str]:
    """Return the text of each file, by its name in this folder."""
    made = boards()
    files = {
        f"{board.uid.removeprefix('clearfunds-')}.json": dashboard_json(board) for board in made
    }
    files["clearfunds.rules.yml"] = rule_file(RECORDINGS, ALERTS)
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for board in made:
        readme = _between(readme, board.uid, _panel_table(board))
    readme = _between(readme, "alerts", _alert_table())
    scraping = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    files["README.md"] = _between(readme, "prometheus.yml", f"```yaml\n{scraping}```")
    return files


def dashboard_json(board: Board) -> str:
    """Write a dashboard as Grafana imports it."""
    return json.dumps(plain(board.model), indent=2, ensure_ascii=False) + "\n"


def plain(model: Dashboard) -> dict[str, Any]:
    """Return a dashboard as JSON has it, of Grafana's schema.

    The SDK writes defaults that no variable but an interval has, and a footer of tables that
    Grafana 12 has no more.
    """
    made: dict[str, Any] = json.loads(json.dumps(model, cls=JSONEncoder))
    for variable in made["templating"]["list"]:
        for name in ("auto", "auto_min", "auto_count"):
            variable.pop(name, None)
    for panel in made["panels"]:
        if panel["type"] == "table":
            panel.get("options", {}).pop("footer", None)
    return made


def _panel_table(board: Board) -> str:
    lines = ["| Panel | What it answers |", "|---|---|"]
    for title, answer in board.answers:
        lines.append(f"| **{title}** | |" if answer is None else f"| {title} | {answer} |")
    return "\n".join(lines)


def _alert_table() -> str:
    lines = ["| Alert | Severity | Fires when | To review |", "|---|---|---|---|"]
    for alert in ALERTS:
        lines.append(f"| `{alert.name}` | {alert.severity} | {alert.when} | {alert.review} |")
    return "\n".join(lines)


def _between(text: str, mark: str, made: str) -> str:
    """Put generated text between the two marks of the README with its name."""
    begin, end = f"<!-- {mark}: made by `make dashboards` -->", f"<!-- end of {mark} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        msg = f"dashboards/README.md must have {begin} and {end}, each once"
        raise ValueError(msg)
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{made}\n\n{end}{tail}"
