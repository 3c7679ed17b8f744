"""What a Syndicate peer's packet causes, traced: one turn for each peer, however it came."""

from __future__ import annotations

import trio

from clearfunds.accounts import Outcome, Trace, Tracer
from clearfunds.transports._trace_label import label_of
from tests.transports.syndicate.relay.peers import (
    BIND,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    observe,
    rec,
    relay,
    says,
    wire,
)

ANY = rec("Says", BIND)


async def trace_of(served: SyndicateRelay, publisher: Peer, data: bytes) -> Trace:
    """Trace what this packet, or these, cause."""
    name = served.account(publisher).name
    with Tracer(served.ledger, name.__eq__, label=label_of) as tracer:
        await publisher.send_raw(data)
        with trio.fail_after(30):
            trace = await tracer.next()
        served.audit()
    return trace


async def test_two_entities_of_one_peer_are_told_by_one_turn() -> None:
    async with relay() as served, served.peer() as one, served.peer() as two, served.peer() as pub:
        await one.send(observe(WHOLE_SAYS, 1, 1), observe(ANY, 2, 2))
        await one.sync()
        await two.send(observe(WHOLE_SAYS, 1, 1))
        await two.sync()
        await pub.sync()
        messages = wire('[[0 <M <Says "a" "x">>] [0 <M <Says "b" "y">>]]')
        assertion = wire('[[0 <A <Says "a" "z"> 1>]]')
        for data, came, told in ((messages, 2, (4, 2)), (assertion, 1, (2, 1))):
            trace = await trace_of(served, pub, data)
            assert trace.complete
            assert trace.root.items == came
            assert {loan.holder: loan.items for loan in trace.loans()} == {
                served.account(peer).name: items
                for peer, items in zip((one, two), told, strict=True)
            }
            assert trace.outcomes == {Outcome.DELIVERED: sum(told)}
            assert all(loan.left_bytes == 0 for loan in trace.loans())
            assert {loan.label for loan in trace.loans()} <= {
                "Says",
                "assert Says",
                "tuple",
                "assert tuple",
            }


async def test_a_message_like_no_other_and_a_run() -> None:
    message = wire(says('"a"', '"x"'))
    async with relay() as served, served.peer() as one, served.peer() as two, served.peer() as pub:
        for peer in one, two:
            await peer.send(observe(WHOLE_SAYS))
            await peer.sync()
        await pub.sync()
        # A template is made of what has come twice; a run is known by it.
        for count in (1, 1, 1, 5):
            trace = await trace_of(served, pub, message * count)
            assert trace.root.items == count
            assert trace.root.labels == ("Says",)
            assert [loan.items for loan in trace.loans()] == [count, count]
            assert {loan.holder for loan in trace.loans()} == {
                served.account(peer).name for peer in (one, two)
            }
            assert trace.outcomes == {Outcome.DELIVERED: 2 * count}


async def test_what_has_no_credit_yet_is_held_until_it_has() -> None:
    async with relay(turn_credit="request") as served, served.peer() as slow, served.peer() as pub:
        await slow.expect("<do <credit-flow-control 202506>>")
        await slow.send("<will <credit-flow-control 202506>>", observe(WHOLE_SAYS))
        await slow.sync()
        await pub.expect("<do <credit-flow-control 202506>>")
        await pub.sync()
        with Tracer(served.ledger, served.account(pub).name.__eq__, label=label_of) as tracer:
            await pub.send(says('"a"', '"x"'))
            await slow.told()
            assert [notes.complete for notes in served.ledger.traces] == [False]
            await slow.send("<C 100>")
            with trio.fail_after(30):
                (loan,) = (await tracer.next()).loans()
        assert (loan.kind, loan.outcomes()) == ("credited", {Outcome.ACKED: 1})
        assert loan.holder == served.account(slow).name
        served.audit()
