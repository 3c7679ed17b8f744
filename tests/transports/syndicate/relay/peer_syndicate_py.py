"""A syndicate-py client that does what it reads on its standard input, and prints what happens.

It is run in a process of its own: it is asyncio, and no part of the project. Arguments: the address
of a relay, as syndicate-py writes it, and a sturdyref, or nothing where there is no gatekeeper.

It prints `connected` and `disconnected`, and for whatever has a NAME: `NAME + values`,
`NAME - values`, `NAME ! values`, `NAME synced` and `NAME reached`. It reads lines; TARGET is `ds`
for the dataspace, or the NAME of a service that was reached, and values are Preserves text:

    send TARGET VALUE               send a message
    flood TARGET COUNT SIZE         send <Says n "xxx...">, each in a packet of its own
    together TARGET COUNT           send <Says n "together">, all in one packet
    assert TARGET NAME VALUE        assert something
    retract NAME                    and retract it
    observe TARGET NAME VALUE       observe what looks like this; $ captures, _ is not looked at
    sync TARGET NAME                wait until all that was said before has been dealt with
    serve TARGET NAME               assert <service "NAME" #:entity>, and print what it is told
    reach TARGET NAME               look for such a service
    leave                           stop
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

# So, and not by name: it has no types.
syndicate: Any = import_module("syndicate")
actor: Any = import_module("syndicate.actor")
dataspace: Any = import_module("syndicate.dataspace")
patterns: Any = import_module("syndicate.patterns")
turn: Any = syndicate.turn
Record: Any = syndicate.Record
Symbol: Any = syndicate.Symbol

PAUSE_SECONDS = 0.001
"""What it says at once goes out in one packet, though it be many turns."""


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)


def pattern(value: Any) -> Any:
    """Return the pattern of what looks like a value."""

    def with_holes(part: Any) -> Any:
        if part == Symbol("$"):
            return patterns.uCAPTURE
        if part == Symbol("_"):
            return patterns.u_
        if isinstance(part, Record):
            return Record(part.key, [with_holes(field) for field in part.fields])
        return [with_holes(item) for item in part] if type(part) in (list, tuple) else part

    return patterns.quote(with_holes(value))


class Told(actor.Entity):  # type: ignore[misc]  # what has no types is Any
    """Prints what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.standing: dict[int, Any] = {}

    def on_publish(self, value: Any, handle: int) -> None:
        self.standing[handle] = value
        say(self.name, "+", syndicate.stringify(value))

    def on_retract(self, handle: int) -> None:
        say(self.name, "-", syndicate.stringify(self.standing.pop(handle)))

    def on_message(self, value: Any) -> None:
        say(self.name, "!", syndicate.stringify(value))


class Reached(actor.Entity):  # type: ignore[misc]
    """Keeps the references that it is told of."""

    def __init__(self, name: str, targets: dict[str, Any]) -> None:
        self.name = name
        self.targets = targets

    def on_publish(self, value: Any, handle: int) -> None:
        (reference,) = value
        self.targets[self.name] = reference.embeddedValue
        say(self.name, "reached")


class Client:
    """Does what it is told."""

    def __init__(self, target: Any) -> None:
        self.targets = {"ds": target}
        self.handles: dict[str, int] = {}

    def obey(self, line: str) -> None:
        """Do one thing, in a turn of its own."""
        command, _, rest = line.partition(" ")
        if command == "retract":
            turn.retract(self.handles.pop(rest))
            return
        if command == "leave":
            turn.stop_actor()
            return
        target, _, rest = rest.partition(" ")
        to = self.targets[target]
        name, _, text = rest.partition(" ")
        match command:
            case "send":
                turn.send(to, syndicate.parse(rest))
            case "together":
                for n in range(int(rest)):
                    turn.send(to, Record(Symbol("Says"), [n, "together"]))
            case "assert":
                self.handles[name] = turn.publish(to, syndicate.parse(text))
            case "observe":
                self._observe(to, pattern(syndicate.parse(text)), Told(name))
            case "sync":
                turn.sync(to, lambda: say(name, "synced"))
            case "serve":
                entity = syndicate.Embedded(turn.ref(Told(name)))
                turn.publish(to, Record(Symbol("service"), [name, entity]))
            case "reach":
                wanted = pattern(Record(Symbol("service"), [name, Symbol("$")]))
                self._observe(to, wanted, Reached(name, self.targets))
            case _:
                raise ValueError(f"no such command: {line!r}")

    def _observe(self, to: Any, wanted: Any, entity: Any) -> None:
        dataspace.observe(to, wanted)(entity)


async def listen(facet: Any, client: Client) -> None:
    """Obey until the end of the input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )

    def obey(command: str) -> None:
        turn.external(facet, lambda: client.obey(command))

    while line := await reader.readline():
        command = line.decode().rstrip("\n")
        if command.startswith("flood "):
            _, target, count, size = command.split()
            for n in range(int(count)):
                obey(f'send {target} <Says {n} "{"x" * int(size)}">')
                await asyncio.sleep(PAUSE_SECONDS)
        else:
            obey(command)
    turn.external(facet, turn.stop_actor)


async def lost(_relay: Any, did_connect: bool) -> bool:
    """Say so, and do not connect again."""
    say("disconnected")
    return False


def main(address: str, sturdyref: str) -> None:
    """Connect, and obey."""
    cap = syndicate.parse(sturdyref) if sturdyref else None

    @actor.run_system(name="peer")  # type: ignore[untyped-decorator]
    def boot() -> None:
        @syndicate.relay.connect(address, cap=cap, on_disconnected=lost)  # type: ignore[untyped-decorator]
        def connected(target: Any) -> None:
            say("connected")
            client = Client(target)

            @turn.linked_task()  # type: ignore[untyped-decorator]
            async def task(facet: Any) -> None:
                await listen(facet, client)


if __name__ == "__main__":
    main(*sys.argv[1:])
