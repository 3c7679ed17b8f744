"""What TLS costs: the section of the page, from what was measured."""

from __future__ import annotations

from benchmarks.evidence import tls


def run(server: str, secure: bool, one: float, idle: float) -> dict[str, object]:
    """Return a run, as it is kept."""
    return {
        "number": 1, "server": server, "tls": secure, "one": one, "pipelined": 0.5,
        "connecting": 0.25, "idle": idle,
    }  # fmt: skip


def test_the_page_has_a_ratio_where_both_were_measured() -> None:
    runs = [
        run("relay", False, 4.0, 9.0),
        run("relay", True, 6.0, 27.0),
        run("mosquitto", False, 3.0, 1.0),
    ]
    text = tls.render({"passes": 1, "seconds": 1.0, "runs": runs, "skipped": []}).text
    assert "| the relay | 4.00 | 0.50 | 0.25 | 9 |" in text
    assert "| the relay with TLS | 6.00 | 0.50 | 0.25 | 27 |" in text
    assert "| the relay: TLS / none | 1.5 | 1.0 | 1.0 | 3.0 |" in text
    assert "| mosquitto | 3.00 |" in text
    assert "mosquitto: TLS" not in text
    assert "One pass of 1 s" in text


def test_a_figure_that_cannot_be_divided_by_has_no_ratio() -> None:
    runs = [run("relay", False, 4.0, 0.0), run("relay", True, 6.0, 27.0)]
    text = tls.render({"passes": 2, "seconds": 1.0, "runs": runs, "skipped": []}).text
    assert "| the relay: TLS / none | 1.5 | 1.0 | 1.0 | - |" in text
    assert "Medians of 2 passes of 1 s" in text
