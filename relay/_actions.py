"""Actions of an operator over HTTP: changes of a relay while it runs.

    POST  /clients/NAME/disconnect
    PATCH /accounts/NAME            limit_items, limit_bytes, weight, policy, patience, over_limit
    POST  /log-level                level, seconds

NAME is the name of an account, or the end of that (a client identifier) if only one client has it.

1. A body is one JSON object; a field that is not known, or of the wrong kind, is refused, and then
   nothing changes. Answers are JSON; refusals are a sentence.
2. Each has a line in the log of `clearfunds.audit`, done or refused, with the token and the address
   that it came from. The server has checked the token.
3. What is set holds until the relay ends, also when its configuration is read again (`_adjusting`).
"""

from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import trio

from ..access._account_tree import TENANT_PREFIX
from ..access._patterns import exactly
from ..access._publication_policies import OverLimitWord, PublicationPolicy
from ..access._subscription_policies import ProfileWord, StuckWord, SubscriptionPolicy
from ..access._topic_rules import EVERY_TOPIC
from ..pages import Response
from ..transports import parse_size
from ._adjusting import KEPT, AdjustError, LogLevel, UnknownNameError
from ._client_facts import facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..accounts import Account
    from ..pages import Operator, Request
    from ..transports._session import Session
    from ._adjusting import Adjusting
    from ._relay import Relay

audit_log = logging.getLogger("clearfunds.audit")

WHY: Final = "the operator disconnected it"

SECONDS_MAX: Final = 86400.0
"""A log level that is set for a time holds for a day at most."""

_JSON: Final = "application/json"

_CLIENTS, _DISCONNECT, _ACCOUNTS, _LOG_LEVEL = (
    "/clients/",
    "/disconnect",
    "/accounts/",
    "/log-level",
)

_HELP: Final = (
    "There is no such action; there are: POST /clients/NAME/disconnect, PATCH /accounts/NAME, "
    "POST /log-level."
)

_NAMES_MAX: Final = 5
# Names in a sentence.


class _RefusedError(Exception):
    """The action is refused, with a status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Actions:
    """Carries out the actions on one relay; an `Action` for `serve_http`.

    Args:
        relay: The relay; it has an `Adjusting`.
        nursery: Runs what ends a change that is for a time.
    """

    def __init__(self, relay: Relay, nursery: trio.Nursery) -> None:
        assert relay.adjusting is not None
        audit_log.setLevel(logging.INFO)  # whatever the relay's log has
        self._adjusting: Adjusting = relay.adjusting
        self._relay = relay
        self._nursery = nursery
        # A log level that is for a time, the one after it, and what ends the wait.
        self._for_a_time: tuple[LogLevel, LogLevel, trio.CancelScope] | None = None

    async def __call__(self, request: Request, operator: Operator) -> Response:
        """Carry out one request. Cancellation: it is done, or not."""
        try:
            done = self._do(request)
        except _RefusedError as error:
            return _refuse(request, operator, error.status, str(error))
        except UnknownNameError as error:
            return _refuse(request, operator, 404, str(error))
        except AdjustError as error:
            return _refuse(request, operator, 400, str(error))
        log_action(request, operator, 200, json.dumps(done), done)
        return Response(f"{json.dumps(done)}\n".encode(), content_type=_JSON)

    def _do(self, request: Request) -> dict[str, Any]:
        path = request.path
        fields = _fields_of(request)
        if path.startswith(_CLIENTS) and path.endswith(_DISCONNECT):
            _check_method(request, "POST")
            return self._disconnect(path[len(_CLIENTS) : -len(_DISCONNECT)], fields)
        if path.startswith(_ACCOUNTS):
            _check_method(request, "PATCH")
            return self._change_account(path[len(_ACCOUNTS) :], fields)
        if path == _LOG_LEVEL:
            _check_method(request, "POST")
            return self._set_log_level(fields)
        raise _RefusedError(404, _HELP)

    # -- clients --------------------------------------------------------------------------------

    def _disconnect(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        _check_known(fields)
        session = self._session_of(name)
        session.expel(WHY)
        return {"disconnected": session.name}

    def _session_of(self, name: str) -> Session[Any, Any]:
        """Return the connection of a client, by its account's name or the end of that."""
        everybody = [session for side in self._relay.sides for session in side.open]
        found: list[Session[Any, Any]] = [each for each in everybody if each.name == name]
        if not found:
            found = [each for each in everybody if each.name.rpartition("/")[2] == name]
        if not found:
            raise _RefusedError(
                404, f"No client {name} is connected: `clearfunds top` has those that are."
            )
        if len(found) > 1:
            names = ", ".join(session.name for session in found[:_NAMES_MAX])
            msg = f"{len(found)} clients are called {name}; give the whole name: {names}."
            raise _RefusedError(409, msg)
        return found[0]

    # -- accounts -------------------------------------------------------------------------------

    def _change_account(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        known = "limit_items", "limit_bytes", "weight", "policy", "patience", "over_limit"
        _check_known(fields, *known)
        if not fields:
            raise _RefusedError(400, f"There is nothing to change; give one of {', '.join(known)}.")
        items = KEPT if "limit_items" not in fields else _items(fields["limit_items"])
        nbytes = KEPT if "limit_bytes" not in fields else _bytes(fields["limit_bytes"])
        weight = None if "weight" not in fields else _number("weight", fields["weight"])
        if not self._is_known(name):
            name = self._session_of(name).name
        policies = _policies_of(name, fields)
        if policies:
            facts = facts_of(self._relay, name)
            if facts is None:
                raise _RefusedError(400, f"{name} is no client; policies are those of clients.")
            for policy in policies:
                _check_fit(name, facts["protocol"], policy)
        adjusting = self._adjusting
        with adjusting.together():
            if items is not KEPT or nbytes is not KEPT:
                adjusting.set_limit(name, items=items, nbytes=nbytes)
            if weight is not None:
                adjusting.set_weight(name, weight)
            for policy in policies:
                adjusting.set_policy(policy)
        return {"account": name, **fields, **_amounts_of(self._relay.ledger.accounts.get(name))}

    def _is_known(self, name: str) -> bool:
        if name in self._relay.ledger.accounts or name.startswith(TENANT_PREFIX):
            return True
        return facts_of(self._relay, name) is not None

    # -- the log --------------------------------------------------------------------------------

    def _set_log_level(self, fields: dict[str, Any]) -> dict[str, Any]:
        _check_known(fields, "level", "seconds")
        level = cast("LogLevel", _word("level", fields.get("level"), LogLevel))
        seconds = None
        if fields.get("seconds") is not None:
            seconds = _number("seconds", fields["seconds"])
            if not 0 < seconds <= SECONDS_MAX:
                msg = f"The field seconds must be above 0 and at most {SECONDS_MAX:.0f}."
                raise _RefusedError(400, msg)
        before = afterwards = self._adjusting.log_level
        if self._for_a_time is not None:  # A later change replaces the one that was for a time.
            was, then, scope = self._for_a_time
            self._for_a_time = None
            scope.cancel()
            if was == before:
                afterwards = then
        self._adjusting.set_log_level(level)
        if seconds is not None:
            self._for_a_time = level, afterwards, trio.CancelScope()
            self._nursery.start_soon(self._back, seconds, *self._for_a_time)
        return {"level": level, "before": before, "seconds": seconds}

    async def _back(
        self, seconds: float, level: LogLevel, then: LogLevel, scope: trio.CancelScope
    ) -> None:
        with scope:
            try:
                await trio.sleep(seconds)
            finally:
                # Also if the relay ends before that: it may begin anew, in the same process.
                if self._for_a_time is not None and self._for_a_time[2] is scope:
                    self._for_a_time = None
                    self._end_level(level, then)

    def _end_level(self, level: LogLevel, then: LogLevel) -> None:
        if self._adjusting.log_level != level:
            return  # It has been configured anew meanwhile.
        self._adjusting.set_log_level(then)
        audit_log.info(
            "the log level is %s again",
            then,
            extra={"event": "action", "action": "log-level", "level": then},
        )


def log_action(
    request: Request,
    operator: Operator,
    status: int,
    result: str,
    fields: Mapping[str, object],
) -> None:
    """Log an action, done or refused (rule 2)."""
    audit_log.log(
        logging.INFO if status < 400 else logging.WARNING,
        "%s: %s %s: %s",
        operator,
        request.method,
        request.path,
        result,
        extra={
            "event": "action",
            "peer": operator.peer,
            "token": operator.token,
            "action": f"{request.method} {request.path}",
            "status": status,
            "result": dict(fields),
        },
    )


def _refuse(request: Request, operator: Operator, status: int, sentence: str) -> Response:
    text = sentence if sentence.endswith(".") else f"{sentence}."
    log_action(request, operator, status, text, {"reason": text})
    return Response.sentence(status, f"{text[0].upper()}{text[1:]}")


def _check_method(request: Request, method: str) -> None:
    if request.method != method:
        raise _RefusedError(405, f"{request.path} takes {method}, not {request.method}.")


def _fields_of(request: Request) -> dict[str, Any]:
    if not request.body.strip():
        return {}
    try:
        found = json.loads(request.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _RefusedError(400, 'The body is not a JSON object, such as {"limit_items": 500}.')
    return cast("dict[str, Any]", found)


def _check_known(fields: dict[str, Any], *known: str) -> None:
    for name in fields:
        if name not in known:
            takes = f"; there are {', '.join(known)}" if known else "; it takes none"
            raise _RefusedError(400, f"There is no field {name[:50]!r} here{takes}.")


def _items(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _RefusedError(400, "The field limit_items must be a whole number, or null for no limit.")


def _bytes(value: Any) -> int | None:
    if isinstance(value, str):
        with suppress(ValueError):
            return parse_size(value)
    elif value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    msg = (
        'The field limit_bytes must be a number of bytes, a size such as "8MiB", or null for no '
        "limit."
    )
    raise _RefusedError(400, msg)


def _number(name: str, value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # JSON has whole numbers of any length.
            if math.isfinite(value):
                return float(value)
    raise _RefusedError(400, f"The field {name} must be a number.")


def _word(name: str, value: Any, *kinds: Any) -> str:
    words = [word for kind in kinds for word in get_args(kind)]
    if isinstance(value, str) and value in words:
        return value
    raise _RefusedError(400, f"The field {name} must be one of {', '.join(words)}.")


def _policies_of(name: str, fields: dict[str, Any]) -> list[PublicationPolicy | SubscriptionPolicy]:
    found: list[PublicationPolicy | SubscriptionPolicy] = []
    patience = None if "patience" not in fields else _number("patience", fields["patience"])
    if "policy" in fields:
        word = _word("policy", fields["policy"], StuckWord, ProfileWord)
        try:
            found.append(SubscriptionPolicy(exactly(name), EVERY_TOPIC, word, patience))
        except ValueError as error:
            raise _RefusedError(400, str(error)) from error
    elif patience is not None:
        raise _RefusedError(400, "The field patience goes with policy; give both.")
    if "over_limit" in fields:
        over = _word("over_limit", fields["over_limit"], OverLimitWord)
        found.append(PublicationPolicy(exactly(name), EVERY_TOPIC, over))
    return found


def _check_fit(name: str, protocol: str, policy: PublicationPolicy | SubscriptionPolicy) -> None:
    """Refuse a policy that a client's protocol cannot follow, and which would do nothing."""
    if protocol.startswith("MQTT"):
        return
    fits, what = False, "policy"
    if isinstance(policy, PublicationPolicy):
        fits, what = protocol.startswith("AMQP"), "over_limit"
    elif protocol == "Syndicate":
        # Imported here: it needs the [relay] extra.
        from ..transports.syndicate._droppable import ABLE

        fits = policy.rule(0.0).policy in ABLE
    if not fits:
        msg = f"{name} is a client of {protocol}, to which {what} {policy.policy} does not apply."
        raise _RefusedError(400, msg)


def _amounts_of(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    limit = account.limit
    return {"limit_items": limit.items, "limit_bytes": limit.bytes, "weight": account.weight}
