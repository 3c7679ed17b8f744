"""`/cluster.json`, from the ledgers of several relays."""

from __future__ import annotations

from clearfunds._cli._cluster._view import WAITS_MAX, Answer, cluster_view
from tests.cli.cluster.ledgers import ARCHIVE, NEWSROOM, answer, holder, wait


def test_relays_and_totals() -> None:
    page = cluster_view([answer("relay-1"), Answer("relay-2", fault="no answer within 1 s")])
    assert page == {
        "totals": {
            "relays": 2, "answering": 1, "connections": 2, "debt": {"items": 201, "bytes": 804},
            "waiting": 0,
        },
        "relays": [
            {
                "name": "relay-1", "mqtt": "mqtt+tcp://relay-1:1883", "http": "http://relay-1:80",
                "answers": True, "fault": None, "connections": 2,
                "debt": {"items": 201, "bytes": 804}, "waiting": 0, "alarms": [],
            },
            {
                "name": "relay-2", "mqtt": "", "http": "", "answers": False,
                "fault": "no answer within 1 s",
            },
        ],
        "waits": [],
        "waits_more": 0,
    }  # fmt: skip


def test_a_publisher_that_waits_for_a_subscriber_of_another_relay_is_shown_once() -> None:
    page = cluster_view(
        [
            answer("relay-1", wait(NEWSROOM, on=(holder(f"relay-2/{ARCHIVE}"),))),
            answer("relay-2", wait(f"via/relay-1/{NEWSROOM}", on=(holder(ARCHIVE, "mailbox"),))),
        ]
    )
    (row,) = page["waits"]
    assert (row["relay"], row["waiting"]) == (
        "relay-1", [{"relay": "relay-1", "name": NEWSROOM}]
    )  # fmt: skip
    (on,) = row["on"]
    assert (on["relay"], on["name"], on["items"]) == ("relay-2", ARCHIVE, 200)
    assert page["totals"]["waiting"] == 1


def test_it_is_shown_from_the_other_relay_if_its_own_does_not_answer() -> None:
    page = cluster_view(
        [
            Answer("relay-1"),
            answer("relay-2", wait(f"via/relay-1/{NEWSROOM}", on=(holder(ARCHIVE),))),
        ]
    )
    (row,) = page["waits"]
    assert row["waiting"] == [{"relay": "relay-1", "name": NEWSROOM}]
    assert (row["on"][0]["relay"], row["on"][0]["name"]) == ("relay-2", ARCHIVE)


def test_a_name_that_only_looks_like_another_relays_stays() -> None:
    page = cluster_view(
        [answer("relay-1", wait("a", on=(holder("relay-10/x"), holder("relay-1"))))]
    )
    assert [each["name"] for each in page["waits"][0]["on"]] == ["relay-10/x", "relay-1"]


def test_another_relay_as_a_whole_has_no_name() -> None:
    page = cluster_view(
        [answer("relay-1", wait("a", on=(holder("relay-2", "hop"),))), Answer("relay-2")]
    )
    (on,) = page["waits"][0]["on"]
    assert (on["relay"], on["name"]) == ("relay-2", "")


def test_the_longest_waits_come_first_and_the_rest_is_counted() -> None:
    waits = [wait(f"a{number}", seconds=number) for number in range(WAITS_MAX)]
    page = cluster_view(
        [answer("relay-1", *waits, more=3), answer("relay-2", wait("b", seconds=99))]
    )
    assert len(page["waits"]) == WAITS_MAX
    assert page["waits"][0]["relay"] == "relay-2"
    assert page["waits_more"] == 4
