"""Explanations of the faults that reader and writer have in common."""

from __future__ import annotations

from ..ranges import client
from ..ranges.client import RangeError
from ._errors import PipelineError, RelayAwayError, RelayError, RelayRefusedError


def sentence(where: str, peers: str, goes_on: str, fault: RangeError) -> PipelineError:
    """Return the error, for the user of a query, that explains a fault of the client.

    Args:
        where: The relay's address.
        peers: Whom its listener is for: `readers` or `writers`.
        goes_on: What the query does when it is started again from its checkpoint.
        fault: The fault.
    """
    match fault:
        case client.AwayError():
            return RelayAwayError(
                f"{fault}. Is it running there, with `--listen subscribe+tcp://...` on this very "
                "port (with `subscribe+tls`: option 'tls')? Started again from its checkpoint, the "
                f"query {goes_on}"
            )
        case client.WrongAnswerError():
            return RelayAwayError(
                f"the server at {where} is not a relay's listener for {peers} ({fault}); give the "
                "port that the relay logs with `subscribe+tcp://`, not that of MQTT or of its "
                "pages"
            )
        case client.NotAuthorizedError():
            return RelayRefusedError(
                f"the relay at {where} and this query do not agree who they are: {fault} (options "
                "'user', 'password', 'ca', 'certificate', 'key')"
            )
        case client.RefusedError():
            return RelayRefusedError(f"the relay at {where} refuses: {fault}")
        case _:
            return RelayError(f"the relay at {where} cannot do this: {fault}")
