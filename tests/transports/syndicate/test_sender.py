"""What is sent to one peer, where some of it cannot be said."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from clearfunds.accounts import Ledger, Outcome
from clearfunds.dataspace import Batch, Publication
from clearfunds.transports import LocalProtocolError
from clearfunds.transports._flusher import open_flusher
from clearfunds.transports._outlet import Outlet
from clearfunds.transports.syndicate import Connection
from clearfunds.transports.syndicate._port import Port
from clearfunds.transports.syndicate._sender import Sender
from clearfunds.transports.syndicate._turn_credit import Credited

EVENT = b"\xb5" + b"event" * 10 + b"\x84"
TURN = b"\xb5" + EVENT + b"\x84"


class Choosy:
    """A writer that cannot say everything."""

    def message(
        self, _target: Any, shown: tuple[Publication], _caveats: Sequence[Any]
    ) -> bytes | None:
        match shown[0].payload:
            case b"unsayable":
                raise LocalProtocolError("it cannot be said")
            case b"kept back":
                return None
            case _:
                return EVENT


async def test_credit_changes_what_is_awaited() -> None:
    ledger = Ledger(clock=trio.current_time)
    account = ledger.open("publisher")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        async with open_flusher() as flusher:
            outlet = Outlet(ledger, flusher, ours, "O", on_broken=print)
            credited = Credited(ledger, outlet, "C", on_broken=print)
            seen = [credited.symptoms()]
            for _ in range(5):
                with account.turn() as turn:
                    turn.send(credited, TURN, items=1, nbytes=len(TURN))
            flusher.flush_now()
            for _ in range(5):
                seen.append(credited.symptoms())
                credited.credit(1)
            seen.append(credited.symptoms())
            assert [each.outstanding for each in seen] == [0, 5, 4, 3, 2, 1, 0]
            for before, after in pairwise(seen):
                assert before.position != after.position
            credited.close()
            outlet.close()
    ledger.audit()


@pytest.mark.parametrize(
    "payloads",
    [
        [b"unsayable", b"1", b"kept back", b"2", b"unsayable"],
        [b"unsayable", b"kept back"],
        [b"1", b"2", b"3"],
        [b"1", *[b"unsayable"] * 30],
    ],
)
async def test_who_gives_credit_is_not_waited_for_by_what_it_was_not_told(
    payloads: list[bytes],
) -> None:
    """Credit is for turns that were sent; those left out of a batch are none."""
    ledger = Ledger()
    account = ledger.open("publisher")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        async with open_flusher() as flusher:
            outlet = Outlet(ledger, flusher, ours, "O", on_broken=print)
            writer: Any = Choosy()
            sender = Sender(
                ledger.open("peer"),
                outlet,
                Connection(),
                writer,
                complain=lambda _: None,
                cut=print,
            )
            credited = sender.credited = Credited(ledger, outlet, "C", on_broken=print)
            target: Any = SimpleNamespace(oid=1, known=True)
            port = Port(sender, target)
            port.told_as = 1, ((),)
            publications = [Publication("a", payload) for payload in payloads]
            batch = Batch(b"x" * 100 * len(payloads), len(payloads), lambda _: publications)
            with account.turn() as turn:
                turn.send(port, batch, items=batch.count, nbytes=batch.nbytes)
            flusher.flush_now()
            sent = sum(payload.isdigit() for payload in payloads)
            ledger.audit()
            assert account.debt_items == sum(loan.items for loan in credited.loans()) == sent
            assert ledger.repaid_items[Outcome.DROPPED] == len(payloads) - sent
            if sent:
                assert theirs.recv(1 << 16) == TURN * sent
            for n in range(sent):
                assert account.debt_items == sent - n
                credited.credit(1)
            ledger.audit()
            assert account.debt_items == account.debt_bytes == 0
            assert len(credited) == 0
            await trio.lowlevel.checkpoint()
            credited.close()
            outlet.close()
