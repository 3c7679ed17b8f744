"""Fetching traces: a relay's `/trace.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict, cast
from urllib.parse import urlencode

from .._errors import CommandFailedError
from .._page import PageStatusError, fetch_json

if TYPE_CHECKING:
    from clearfunds.pages._trace_json import TraceRow
    from clearfunds.pages._trace_waits import WaitingRow

    from .._top._source import Source

SPARE_SECONDS: Final = 10.0
"""Beyond the wait, for the answer itself."""


class TracePage(TypedDict):
    """The relay's answer; see `clearfunds.pages._trace_page`."""

    account: str
    armed: int
    traces: list[TraceRow]
    waits: list[WaitingRow]
    waits_more: int


async def fetch_traces(
    source: Source, account: str, *, wait: float, events: int, loans: int, holder: str | None
) -> TracePage:
    """Ask the relay to follow the next events of `account`.

    Raises:
        CommandFailedError: There is no answer; one line has the reason.
    """
    fields = {"account": account, "wait": f"{wait:g}", "events": events, "loans": loans}
    if holder is not None:
        fields["holder"] = holder
    relay = source.url
    url = f"{relay}/trace.json"
    try:
        page: Any = await fetch_json(
            f"{url}?{urlencode(fields)}", wait + SPARE_SECONDS, source.visitor
        )
    except PageStatusError as error:
        if error.status == 404 and error.sentence.startswith("There is no page"):
            msg = f"{url} is not a page of this relay; is it of an older version?"
            raise CommandFailedError(msg) from error
        raise CommandFailedError(f"{relay}: {error.sentence}") from error
    if not isinstance(page, dict) or not {"traces", "waits", "armed"} <= page.keys():
        msg = f"{url} is not the page of a relay of this version"
        raise CommandFailedError(msg)
    return cast("TracePage", page)
