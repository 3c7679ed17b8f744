"""mosquitto's clients with passwords and certificates, at mosquitto and at a relay: one list."""

from __future__ import annotations

import subprocess
from pathlib import Path

import trio

from clearfunds.access import Passwords
from clearfunds.access.acl import Acl
from clearfunds.sockets import ServerTls
from tests.access.acl.test_oracle import mosquitto_with
from tests.ports import lasting_port
from tests.programs import needs
from tests.transports.certificates import Papers, papers_in
from tests.transports.mqtt.users import user_line
from tests.transports.peers import SECONDS, kill, running

pytestmark = needs("mosquitto", "mosquitto_pub", "mosquitto_sub")

LIST = """
topic readwrite nobody
user anna
topic readwrite a/#
topic deny a/secret
topic read b
user bert
topic write a/secret
topic readwrite b
pattern readwrite own/%u/#
pattern read own/+/%c
"""

TOPICS = ("a/1", "a/secret", "b", "c", "own/anna/1", "own/bert/it", "nobody")


def clients(papers: Papers, port: int, secure: int) -> list[list[str]]:
    """Return how each connects: by a password, and by a certificate, though it says otherwise."""
    anna = papers.for_client("anna")
    here = ["-h", "localhost", "-i", "it", "-V", "5"]
    return [
        [*here, "-p", str(port), "-u", "bert", "-P", "secret"],
        [
            *(*here, "-p", str(secure), "--cafile", str(papers.trusted), "-u", "bert"),
            *("--cert", str(anna.chain), "--key", str(anna.key)),
        ],
    ]


async def run(*command: str) -> bytes:
    """Run a client to its end; return what it prints, and says."""
    with trio.fail_after(SECONDS):
        ended = await trio.run_process(
            command,
            check=False,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            deliver_cancel=kill,
        )
    assert isinstance(ended.stdout, bytes)
    # What is retained comes in any order, and a relay says more than mosquitto of why not.
    lines = (line for line in ended.stdout.splitlines() if not line.startswith(b"user "))
    return b"\n".join(sorted(lines))


async def told(papers: Papers, port: int, secure: int) -> list[bytes]:
    """Return what all clients print that publish to each topic, and then subscribe to all."""
    printed: list[bytes] = []
    for number, options in enumerate(clients(papers, port, secure)):
        for topic in TOPICS:
            said = ["-t", topic, "-m", str(number), "-q", "1", "-r"]
            printed.append(await run("mosquitto_pub", *options, *said))
    for options in clients(papers, port, secure):
        printed.append(await run("mosquitto_sub", *options, "-t", "#", "-v", "-W", "1"))
    return printed


async def test_who_somebody_is_says_what_may_be_done(tmp_path: Path) -> None:
    papers = papers_in(tmp_path)
    issued = papers.for_server(asks=True)
    users = user_line("bert", b"secret")
    (tmp_path / "users").write_text(f"{users}\n")
    secure = lasting_port()
    more = (
        f"allow_anonymous false\npassword_file {tmp_path / 'users'}\n"
        f"listener {secure} 127.0.0.1\ncafile {papers.trusted}\ncertfile {issued.chain}\n"
        f"keyfile {issued.key}\nrequire_certificate true\nuse_identity_as_username true\n"
    )
    with mosquitto_with(tmp_path, LIST, more) as port:
        expected = await told(papers, port, secure)
    async with running(
        listen=("mqtt+tcp://127.0.0.1:0", "mqtt+tls://127.0.0.1:0"),
        passwords=Passwords.from_text(users),
        tls=ServerTls(issued.for_server),
        acl=Acl.from_text(LIST),
        strangers=1,
    ) as relay:
        secure = int(relay.addresses.listening[1].rpartition(":")[2])
        assert await told(papers, relay.port, secure) == expected
        relay.audit()
    assert sum(b"Not authorized" in each for each in expected) == 9
    assert any(b"own/bert/it 0" in each for each in expected)
