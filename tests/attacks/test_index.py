"""Nobody can make it dear to find out whom a message concerns, for others or for long."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

from tests.attacks.kit import (
    Attacker,
    Scene,
    attack,
    attacked,
    connect,
    publish,
    subscribe,
    until_over,
)
from tests.transports.mqtt.wire import PINGREQ
from tests.transports.syndicate.relay.peers import BIND, observe, wire

LEVELS = 127
CLIENTS = 10


def deep_filters(seed: int) -> list[str]:
    """Filters with wildcards anywhere, all of which match `a/a/...`."""
    dice = random.Random(seed)
    return ["/".join(dice.choice("a+") for _ in range(LEVELS - 1)) + "/#" for _ in range(1_000)]


def say_slowly(client: Attacker, packets: list[bytes]) -> None:
    """Send packets a few at a time: what is prepared is not the attack."""
    for at in range(0, len(packets), 100):
        client.send(b"".join(packets[at : at + 100]) + PINGREQ)
        assert client.receive() == b"\xd0\0"


def warm(scene: Scene, topics: list[str]) -> None:
    """Publish to many topics, and wait until that is done."""
    with Attacker(scene.port, connect("warm")) as client:
        client.let_in()
        say_slowly(client, [publish(topic) for topic in topics])


@attack
def test_wildcards_beside_many_topics(seconds: float) -> None:
    """A change of a subscription looked at each topic whose route is kept: 14 s for a packet."""
    topics = [f"{n}/a/a/a" for n in range(16_000)]
    packet = subscribe(*(f"+/+/+/z{n}" for n in range(1_000)))
    with attacked(seconds) as scene:
        warm(scene, topics)

        def again() -> None:
            with Attacker(scene.port, connect("mallory")) as mallory:
                mallory.let_in()
                mallory.send(packet)
                assert mallory.receive()
            warm(scene, topics[:1_000])

        until_over(seconds, again)
    scene.survived()


@attack
def test_topics_whose_route_is_dear(seconds: float) -> None:
    """The paths through a trie double with each `+`: a publication took a second."""
    body = "a/" * (LEVELS - 1)
    with attacked(seconds) as scene, ExitStack() as stack:
        for number in range(CLIENTS):
            client = stack.enter_context(Attacker(scene.port, connect(f"deep-{number}")))
            client.let_in().send(subscribe(*deep_filters(number)))
            assert client.receive()[:1] == b"\x90"
        mallory = stack.enter_context(Attacker(scene.port, connect("mallory"))).let_in()
        count = iter(range(1 << 60))

        def again() -> None:
            mallory.send(publish(f"{body}x{next(count)}", qos=1))
            assert mallory.receive()

        until_over(seconds, again)
    scene.survived()


@attack
def test_deep_topics_take_no_memory(seconds: float) -> None:
    """The routes that are kept are bounded in bytes: of 16,000 topics they took 500 MB."""
    body = "/".join("abc" for _ in range(LEVELS - 1))
    with attacked(seconds) as scene, Attacker(scene.port, connect("mallory")) as mallory:
        mallory.let_in()
        count = iter(range(1 << 60))
        until_over(
            seconds,
            lambda: mallory.send(b"".join(publish(f"{next(count)}/{body}") for _ in range(100))),
        )
    scene.survived(more_memory=64 << 20)


@attack
def test_replays_beside_many_retained(seconds: float) -> None:
    """What is retained was looked through in one step, also if nothing of it matched."""
    with attacked(seconds) as scene:
        with Attacker(scene.port, connect("owner")) as owner:
            retained = [publish(f"{n}/b/c", b"x", retain=True) for n in range(30_000)]
            say_slowly(owner.let_in(), retained)

        def ask(name: str) -> Callable[[], object]:
            def again() -> None:
                with Attacker(scene.port, connect(name)) as client:
                    client.let_in().send(subscribe("+/+/z", "+/x/#") + PINGREQ)
                    while (data := client.receive()) and not data.endswith(b"\xd0\0"):
                        pass

            return again

        until_over(seconds, *(ask(f"asks-{n}") for n in range(CLIENTS)))
    scene.survived()


def shapes(seed: int) -> list[str]:
    """Patterns for publications that look at different places; what all want at one is nowhere."""
    dice = random.Random(seed)
    patterns: list[str] = []
    for _ in range(100):
        places = sorted(dice.sample(range(59), 8))
        entries = " ".join(f'{place}: <lit "a">' for place in places) + ' 59: <lit "z">'
        levels = f"<group <arr> {{{entries}}}>"
        patterns.append(f"<group <rec publication> {{0: {levels} 1: {BIND}}}>")
    return patterns


@attack
def test_shapes_of_patterns(seconds: float) -> None:
    """10,000 patterns for whatever cost each publication 376 ms; ten connections have 1,000 now."""
    options = ("--listen", "syndicate+tcp://127.0.0.1:0")
    with attacked(seconds, *options, pair=("--qos", "1")) as scene, ExitStack() as stack:
        port = int(scene.relay.listening[1].rpartition(":")[2])
        for number in range(CLIENTS):
            peer = stack.enter_context(Attacker(port))
            packets = [observe(p, 1, n) for n, p in enumerate(shapes(number))]
            peer.send(wire(*packets, "[[0 <S #:[0 2]>]]"))
            assert peer.receive()
        mallory = stack.enter_context(Attacker(scene.port, connect("mallory"))).let_in()
        count = iter(range(1 << 60))

        def again() -> None:
            topic = f"{'a/' * 59}x{next(count)}"
            mallory.send(publish(topic, qos=1, packet_id=1))
            assert mallory.receive()

        until_over(seconds, again)
    scene.survived()
