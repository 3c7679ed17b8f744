"""Random access control lists and questions about them, to be asked of two servers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from clearfunds.transports.mqtt import PingReq, PingResp, PubAck, Publish
from tests.transports.mqtt.peers5 import Client5, connected5
from tests.transports.peers import SECONDS

ROOT: Final = "root"
"""A user that may do everything, whatever patterns say."""

ROOTS_RULES: Final = f"user {ROOT}\ntopic readwrite #\ntopic readwrite $x/#\n"

NOT_AUTHORIZED: Final = 0x87

LEVELS: Final = ("a", "b", "", "u1", "c1", "ä", "a b", "%u", "deny")
SHARED_NAMES: Final = ("a", "b", "a/b", "u+1", "#", "+", "u#", "%c", "x y", "ä")
"""Names that a server might take for more than they are."""


@attrs.frozen
class Case:
    """Whether a client may do something."""

    user: str | None
    client: str
    topic: str
    writes: bool


@attrs.frozen
class Questions:
    """A list, and cases to be decided by it."""

    text: str
    cases: Sequence[Case]


def questions(seed: int, count: int) -> Questions:
    """Make a list for `count` cases."""
    rng = random.Random(seed)
    lines = [ROOTS_RULES.rstrip()]
    anonymous = [_line(rng, "topic") for _ in range(rng.randrange(3))]
    patterns = [_line(rng, "pattern") for _ in range(rng.choice((0, 1, 2, 4)))]
    users: list[str] = [f"u{number}" for number in range(max(1, count // 4))]
    users += rng.sample(SHARED_NAMES, 5)
    rules: dict[str | None, list[str]] = {None: anonymous}
    for user in dict.fromkeys(users):
        lines.append(f"user {user}")
        rules[user] = [_line(rng, "topic") for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
        lines += rules[user]
        if rng.random() < 0.2:
            lines.append(rng.choice(("", "# a comment", "#topic readwrite #")))
    for pattern in patterns:  # they stand anywhere
        lines.insert(rng.randrange(len(lines) + 1), pattern)
    cases = [_case(rng, rules, patterns) for _ in range(count)]
    return Questions("\n".join((*anonymous, *lines, "")), cases)


def _line(rng: random.Random, word: str) -> str:
    access = rng.choice(("read ", "write ", "readwrite ", "deny "))
    topic = _filter(rng, pattern=word == "pattern")
    if rng.random() < 0.2 and " " not in topic and topic not in ("", "deny"):
        access = ""
    return f"{word} {access}{topic}"


def _filter(rng: random.Random, *, pattern: bool) -> str:
    levels: list[str] = []
    for _ in range(rng.randrange(1, 4)):
        chosen = rng.random()
        if chosen < 0.25:
            levels.append("+")
        elif chosen < 0.6 and pattern:
            levels.append(rng.choice(("%u", "%c", "x%u", "%c-%u", "%%u")))
        else:
            levels.append(rng.choice(LEVELS))
    if rng.random() < 0.4:
        levels.append("#")
    if rng.random() < 0.1:
        levels.insert(0, "$x")
    text = "/".join(levels)
    return text if text.strip() == text and text else "a/#"


def _case(rng: random.Random, rules: dict[str | None, list[str]], patterns: list[str]) -> Case:
    user = rng.choice([*rules, "nobody knows"])
    client = rng.choice(("c1", "a", "a/b", "c+", "c#", "%u", user or "anyone", "x y"))
    words = [*LEVELS, user or "a", client, f"x{user}", f"{client}-{user}", f"%{user}"]
    words = [word for word in words if not any(sign in word for sign in "+#$")]
    levels = [rng.choice(words) for _ in range(rng.randrange(1, 5))]
    if rng.random() < 0.15:
        levels.insert(0, "$x")
    about = [*rules.get(user, ()), *patterns]
    if about and rng.random() < 0.7:  # something that a rule may be about
        levels = _matching(rng, rng.choice(about), user or "", client, words)
    topic = "/".join(levels)
    unfit = not topic or any(sign in topic for sign in "+#")
    return Case(user, client, "a" if unfit else topic, rng.random() < 0.5)


def _matching(rng: random.Random, line: str, user: str, client: str, words: list[str]) -> list[str]:
    """Make a topic, as levels, that the filter in a line may match."""
    word, *rest = line.split(" ")
    if rest[0] in ("read", "write", "readwrite", "deny"):
        del rest[0]
    topic = " ".join(rest)
    if word == "pattern":
        topic = topic.replace("%u", user).replace("%c", client)
    levels = topic.split("/")
    if levels[-1] == "#":
        levels[-1:] = rng.choices(words, k=rng.randrange(3))
    return [rng.choice(words) if level == "+" else level for level in levels]


class Asker:
    """Asks a server about cases, one after the other.

    Args:
        port: The server's.
        root: A client of `ROOT`'s there.
    """

    def __init__(self, port: int, root: Client5) -> None:
        self._port = port
        self._root = root

    async def allowed(self, case: Case) -> bool:
        """Whether a server allows what a case is about."""
        with trio.fail_after(SECONDS):
            async with connected5(self._port, case.client, username=case.user) as client:
                if case.writes:
                    await client.publish(case.topic, b"x", 1)
                    answer = await client.next()
                    assert isinstance(answer, PubAck)
                    return answer.reason != NOT_AUTHORIZED
                return await self._reads(client, case.topic)

    async def _reads(self, client: Client5, topic: str) -> bool:
        await client.subscribe(topic)
        await self._root.publish(topic, b"x", 1)
        answer = await self._root.next()
        assert isinstance(answer, PubAck)
        assert answer.reason != NOT_AUTHORIZED
        await client.send(PingReq())
        packet = await client.next()
        if isinstance(packet, Publish):
            await client.expect(PingResp())
            return True
        assert packet == PingResp()
        return False


async def answers(port: int, cases: Sequence[Case]) -> list[bool]:
    """Return what a server says to cases."""
    async with AsyncExitStack() as stack:
        root = await stack.enter_async_context(connected5(port, "the root", username=ROOT))
        asker = Asker(port, root)
        return [await asker.allowed(case) for case in cases]
