"""Actions on the page of several workers: each is for the workers that it concerns.

1. Below a worker's name (`/NAME/clients/...`) it is for that worker alone.
2. Otherwise all are asked at once: a client is at one of them, and a tenant, the server and the log
   level are everywhere. It is done if one has done it; refused if none has, as by the first that
   knows the name.
3. The page's own log has a line for each, as a relay's (`relay/_actions.py`).
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import trio

from clearfunds.pages import Operator, Request, Response
from clearfunds.relay._actions import log_action

from ._forwarding import forward
from ._relays import Member

_NOT_FOUND: Final = 404

_ANSWER_BYTES_MAX: Final = 65536
# Of one worker, to one action: it has the fields of one account.


class CrowdActions:
    """Carries out actions on all workers; an `Action` for `serve_http`.

    Args:
        relays: The workers.
    """

    def __init__(self, relays: Sequence[Member]) -> None:
        self._relays = {relay.name: relay for relay in relays}

    async def __call__(self, request: Request, operator: Operator) -> Response:
        """Carry out one request. Cancellation: each worker has done it, or not."""
        name, slash, rest = request.path.removeprefix("/").partition("/")
        relays, path = list(self._relays.values()), request.path.removeprefix("/")
        if slash and name in self._relays:
            relays, path = [self._relays[name]], rest
        answers: dict[str, tuple[int, str]] = {}

        async def ask(relay: Member) -> None:
            answers[relay.name] = await _read(await forward(relay, path, request))

        async with trio.open_nursery() as nursery:
            for relay in relays:
                nursery.start_soon(ask, relay)
        response, result = _together([(name, *answers[name]) for name in sorted(answers)])
        log_action(request, operator, response.status, json.dumps(result), result)
        return response


async def _read(response: Response) -> tuple[int, str]:
    """Return the status and the text of a worker's answer."""
    body = response.body
    if isinstance(body, bytes):
        return response.status, body.decode(errors="replace")
    text = bytearray()
    try:
        async for piece in body:
            text += piece
            if len(text) > _ANSWER_BYTES_MAX:
                break
    except trio.BrokenResourceError:
        return 502, "the answer breaks off"
    finally:
        aclose: Any = getattr(body, "aclose", None)
        if aclose is not None:
            await aclose()
    return response.status, text.decode(errors="replace")


def _together(answers: Sequence[tuple[str, int, str]]) -> tuple[Response, dict[str, Any]]:
    done = {name: json.loads(text) for name, status, text in answers if status < 400}
    if not done:
        refused = [(status, text) for _, status, text in answers]
        status, text = next((each for each in refused if each[0] != _NOT_FOUND), refused[0])
        return Response.sentence(status, text.strip()), {"reason": text.strip()}
    failed = {
        name: text.strip()
        for name, status, text in answers
        if status >= 400 and status != _NOT_FOUND
    }
    result: dict[str, Any] = {"done": done, **({"failed": failed} if failed else {})}
    return Response(f"{json.dumps(result)}\n".encode(), content_type="application/json"), result
