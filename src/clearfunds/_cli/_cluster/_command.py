"""`clearfunds cluster up`: its options, and its course."""

import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Group, Parameter
from cyclopts.validators import Number

from clearfunds.pages import Access
from clearfunds.relay._pages import PagesAddress, refuse_to_be_open
from clearfunds.sockets import trouble_with_file
from clearfunds.transports import ListenURLError

from .._errors import CommandFailedError, UsageError
from .._logging import configure_logging
from .._running import run_async, sentence_of
from .._types import Count, OptionalText
from ._course import Course, run_course
from ._ending import Ending, with_hang_up
from ._look import Looks
from ._nats import find_nats_server, start_nats_servers
from ._pages import ClusterPages, serve_cluster_pages
from ._relays import GRACE_SECONDS, Member, members, start_relays

_CLUSTER: Final = Group("Cluster", sort_key=1)

_MOST: Final = 16
# Relays, and NATS servers: each is a process on this machine.

_PORTS_MAX: Final = 65_535

_HOST_ADVICE: Final = "or by the name that --http has"

cluster = App(name="cluster", help="Run a cluster of relays on this machine, to try it.")


@cluster.command
def up(
    *,
    relays: Annotated[
        Count,
        Parameter(group=_CLUSTER, help="Number of relays.", validator=Number(gte=1, lte=_MOST)),
    ] = 3,
    nats: Annotated[
        Count,
        Parameter(
            group=_CLUSTER,
            help="Number of NATS servers: 1, or 3 and more.",
            validator=Number(gte=1, lte=_MOST),
        ),
    ] = 3,
    port: Annotated[
        int,
        Parameter(
            group=_CLUSTER,
            help="MQTT port of the first relay; the other relays have the next ones. 0: any free "
            "ports.",
            validator=Number(gte=0, lte=_PORTS_MAX),
        ),
    ] = 1883,
    http: Annotated[
        OptionalText,
        Parameter(
            group=_CLUSTER,
            help="Address of the cluster's page, HOST:PORT (port 0: any free); none: no page.",
        ),
    ] = "127.0.0.1:8080",
    http_open: Annotated[
        bool,
        Parameter(
            group=_CLUSTER,
            negative=(),
            show_default=False,
            help="Serve that page to everybody who reaches it, on an address that other machines "
            "reach, too.",
        ),
    ] = False,
    directory: Annotated[
        Path | None,
        Parameter(
            group=_CLUSTER,
            help="Directory for the NATS servers' stores, which stay there [default: a temporary "
            "one].",
        ),
    ] = None,
) -> int:
    """Run a cluster on this machine until Ctrl-C or SIGTERM, to try it: relays and NATS servers.

    Relays and NATS servers listen on 127.0.0.1, and no client has to log in. Prints the address of
    each process, and commands to try. The page at --http shows all relays and who waits for whom;
    it has `/cluster.json` for programs and `/metrics` for Prometheus. At the first signal the
    relays deliver outstanding messages and end, then the NATS servers; a second one ends all at
    once. If a process ends by itself, all end, with exit status 1.
    """
    if nats == 2:
        raise UsageError("--nats is 1, or 3 and more: two servers cannot outvote each other")
    if port and port + relays - 1 > _PORTS_MAX:
        msg = f"--port {port} leaves no port below {_PORTS_MAX + 1} for {relays} relays"
        raise UsageError(msg)
    address = _address(http, http_open=http_open)
    configure_logging("warning")
    find_nats_server()
    with _store(directory) as store:
        try:
            return run_async(_up, members(relays), nats, port, address, store)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise CommandFailedError(sentence_of(error)) from error


def _address(http: str | None, *, http_open: bool) -> PagesAddress | None:
    if http is None:
        return None
    try:
        address = PagesAddress.parse(http)
        if not http_open:
            refuse_to_be_open(address, "it has no logins")
    except ListenURLError as error:
        raise UsageError(f"--http: {error}") from error
    if address.secure:
        raise UsageError("--http: the cluster's page has no https; give HOST:PORT")
    return address


@contextmanager
def _store(directory: Path | None) -> Generator[Path]:
    """Have a directory for the stores: the given one, or one that goes at the end."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="clearfunds-cluster-") as name:
            yield Path(name)
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--directory {trouble_with_file(directory, error)}"
        raise CommandFailedError(msg) from error
    yield directory


async def _up(
    relays: list[Member], nats: int, port: int, address: PagesAddress | None, store: Path
) -> int:
    async def start(course: Course) -> None:
        page: str | None = None
        if address is not None:
            access = Access(hosts=(address.host,), open_pages=frozenset(), advice=_HOST_ADVICE)
            handlers = ClusterPages(Looks(relays)).handlers()
            page = await serve_cluster_pages(course.beside, handlers, address, access)
        servers = await start_nats_servers(course.servers, nats, store)
        await start_relays(course.relays, relays, servers, port)
        _tell(relays, servers, page)

    return await run_course(
        start, grace=GRACE_SECONDS, signals=with_hang_up(), at_end=_say_that_it_ends
    )


def _tell(relays: Sequence[Member], servers: Sequence[str], page: str | None) -> None:
    """Print the addresses, and commands to try."""
    first, last = relays[0].addresses.mqtt, relays[-1].addresses.mqtt
    lines = [f"A cluster of {_count(relays, 'relay')} and {_count(servers, 'NATS server')}:", ""]
    lines += (
        f"  {each.name:<9} {each.addresses.mqtt}  live page {each.addresses.http}"
        for each in relays
    )
    lines += (f"  {f'nats-{number}':<9} {url}" for number, url in enumerate(servers, 1))
    if page is not None:
        lines += ["", f"All relays, and who waits for whom: {page}"]
    lines += [
        "",
        "Subscribe on one relay and publish on another, in two more terminals:" if len(relays) > 1
        else "Subscribe and publish, in two more terminals:",
        "",
        f"  clearfunds sub --url {first} 'news/#'",
        f"  clearfunds pub --url {last} --topic news/today --message hello",
        "",
        "Ctrl-C ends it.",
    ]  # fmt: skip
    print("\n".join(lines), flush=True)


def _count(what: Sequence[object], name: str) -> str:
    return f"{len(what)} {name}{'' if len(what) == 1 else 's'}"


def _say_that_it_ends(ending: Ending) -> None:
    why = "" if ending.fault is None else "A process has ended by itself. "
    print(
        f"\n{why}Ending the relays, then the NATS servers. Ctrl-C again ends all at once.",
        file=sys.stderr,
        flush=True,
    )
