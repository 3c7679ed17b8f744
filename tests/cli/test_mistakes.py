"""Plausible mistakes: each is answered by one line with what is wrong, where, and what to do.

The exit status is 2 if the command line, the environment or the configuration is wrong, and 1 for
what failed while the command ran: see docs/relay.md.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests import forks
from tests.ports import lasting_port
from tests.transports.certificates import Papers, papers_in

from .conftest import RelayUnderTest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

PYTHONS_WORDS: Final = re.compile(
    r"Traceback|Errno|NoneType|invalid literal|Exception|[A-Za-z]Error\b|has no attribute"
    r"|must be \w+, not|\[SSL|Unused Tokens|<class|codec can't|could not be cast|unable to convert"
    r"|[ :(]b'|AF_UNIX|when role=|Root Input"
)


@attrs.frozen
class Mistake:
    """A command that cannot work.

    Attributes:
        title: The mistake, in a few words.
        command: The command line behind `clearfunds`; places of `Surroundings` are in braces.
        status: The exit status.
        says: A part of the answer that names the mistake.
        advises: A part of the answer that has the remedy.
        files: Files in the working directory, by name.
        mode: Their rights.
        environment: Variables.
        stdin: The input.
    """

    title: str
    command: str
    status: int
    says: str
    advises: str
    files: Mapping[str, str | bytes] = attrs.field(factory=dict[str, "str | bytes"], kw_only=True)
    mode: int = attrs.field(default=0o600, kw_only=True)
    environment: Mapping[str, str] = attrs.field(factory=dict[str, str], kw_only=True)
    stdin: str = attrs.field(default="", kw_only=True)


def _of_relay(title: str, options: str, status: int, says: str, advises: str) -> Mistake:
    command = f"relay --listen mqtt://127.0.0.1:0 {options}"
    return Mistake(title, command, status, says, advises)


def _of_file(title: str, toml: str, says: str, advises: str) -> Mistake:
    files = {"c.toml": toml}
    return Mistake(title, "relay --config c.toml", 2, says, advises, files=files)


LISTENING: Final = (
    Mistake(
        "port in use", "relay --listen mqtt://127.0.0.1:{taken}", 1, ":{taken}: Address already in",
        "choose another",
    ),
    _of_relay(
        "port of the pages in use", "--http 127.0.0.1:{taken}", 1, ":{taken}: Address already in",
        "choose another",
    ),
    Mistake(
        "port of the cluster's page in use", "cluster up --http 127.0.0.1:{taken}", 1,
        ":{taken}: Address already in use", "choose another",
    ),
    Mistake(
        "unknown scheme", "relay --listen mqt://127.0.0.1:0", 2, "cannot listen on 'mqt://",
        "begin with one of mqtt://",
    ),
    Mistake(
        "no scheme", "relay --listen 127.0.0.1:1883", 2, "cannot listen on '127.0.0.1:1883'",
        "begin with one of mqtt://",
    ),
    Mistake(
        "port that is no number", "relay --listen mqtt://127.0.0.1:mqtt", 2, "127.0.0.1:mqtt",
        "a port is a number from 0 to 65535",
    ),
    Mistake(
        "port too high", "relay --listen mqtt://127.0.0.1:99999", 2, "127.0.0.1:99999",
        "a port is a number from 0 to 65535",
    ),
    Mistake(
        "bracket not closed", "relay --listen mqtt://[::1:1883", 2, "[::1:1883",
        "an IPv6 address stands in brackets",
    ),
    Mistake(
        "unknown host to listen on", "relay --listen mqtt://nowhere.invalid", 1,
        "mqtt+tcp://nowhere.invalid:1883", "check the host's name",
    ),
    Mistake(
        "address of another machine", "relay --listen mqtt://192.0.2.1", 1,
        "Cannot assign requested address", "give an address of this machine",
    ),
    Mistake(
        "path of a socket too long", "relay --listen mqtt+unix:///tmp/{long}", 2, "/tmp/xxx",
        "give a shorter one",
    ),
    Mistake(
        "socket in no folder", "relay --listen mqtt+unix:///nowhere/mqtt.sock", 1,
        "/nowhere/mqtt.sock: No such file", "make the folder first",
    ),
    Mistake(
        "socket in place of a file", "relay --listen mqtt+unix://{file}", 1,
        "{file}: Address already in use", "choose another path",
    ),
    Mistake(
        "socket with a relative path", "relay --listen mqtt+unix://mqtt.sock", 2,
        "mqtt+unix://mqtt.sock", "write mqtt+unix:///absolute/path",
    ),
    _of_relay("pages without a port", "--http 127.0.0.1", 2, "'127.0.0.1'", "write host:port"),
    _of_relay(
        "pages for everybody", "--http 0.0.0.0:0", 2, "the pages on 0.0.0.0 would be open",
        "say that it is meant so (--http-open)",
    ),
    _of_relay(
        "pages of workers for everybody", "--workers 2 --http [::]:0", 2,
        "the pages on :: would be open", "give --http-token FILE",
    ),
    Mistake(
        "page of a cluster for everybody", "cluster up --http 0.0.0.0:0", 2,
        "the pages on 0.0.0.0 would be open", "use 127.0.0.1",
    ),
    _of_relay(
        "pages open to everybody, and none", "--http-open", 2, "--http-open needs",
        "--http HOST:PORT",
    ),
    _of_relay(
        "workers share a socket", "--workers 2 --listen mqtt+unix:///tmp/x", 2,
        "cannot share mqtt+unix:///tmp/x", "give it to another relay",
    ),
)  # fmt: skip

CERTIFICATES: Final = (
    Mistake(
        "TLS without a certificate", "relay --listen mqtts://127.0.0.1:0", 2,
        "TLS needs a certificate", "give --tls-certificate",
    ),
    _of_relay(
        "https without a certificate", "--http https://127.0.0.1:0", 2, "https needs a certificate",
        "give --tls-certificate",
    ),
    _of_relay(
        "key without a certificate", "--tls-key {key}", 2, "--tls-key needs",
        "--tls-certificate FILE",
    ),
    _of_relay(
        "certificate without a key", "--tls-certificate {ca}", 2, "{ca} has no private key",
        "give the file that has (--tls-key)",
    ),
    _of_relay(
        "key of another certificate", "--tls-certificate {chain} --tls-key {other_key}", 2,
        "the key in {other_key} is not that", "give the two that belong together",
    ),
    Mistake(
        "certificate that is none",
        "relay --listen mqtts://127.0.0.1:0 --tls-certificate c.pem --tls-key {key}", 2, "c.pem",
        "has to have a certificate",
        files={"c.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
    ),
    Mistake(
        "authorities that are none",
        "relay --listen mqtts://127.0.0.1:0 --tls-certificate {chain} --tls-key {key} "
        "--tls-client-ca c.pem", 2, "c.pem", "has to have certificates, in PEM",
        files={"c.pem": "hello"},
    ),
    _of_relay(
        "certificate that is not there", "--tls-certificate nowhere.pem", 2,
        "nowhere.pem: No such file or directory", "check the path",
    ),
    Mistake(
        "key for everybody to read",
        "relay --listen mqtts://127.0.0.1:0 --tls-certificate {chain} --tls-key {open_key}", 2,
        "others on this machine can read {open_key}", "chmod 600",
    ),
)  # fmt: skip

USERS: Final = (
    Mistake(
        "line of a password file", "relay --passwords p", 2, "p, line 1: there is no colon",
        "mosquitto_passwd FILE USER", files={"p": "anna secret\n"},
    ),
    _of_relay(
        "password file that is not there", "--passwords nowhere", 2, "nowhere: No such file",
        "check the path",
    ),
    _of_relay(
        "directory as a password file", "--passwords .", 2, ".: Is a directory", "give a file in it"
    ),
    Mistake(
        "password file for everybody to read", "relay --passwords p", 2,
        "others on this machine can read p", "chmod 600 p",
        files={"p": "anna:$7$1$c2FsdA==$AAAA\n"}, mode=0o644,
    ),
    Mistake(
        "word of a rule", "relay --acl a", 2, "a, line 2: 'raed' is not read, write",
        "write one of these", files={"a": "user anna\ntopic raed x\n"},
    ),
    Mistake(
        "topic filter of a rule", "relay --acl a", 2, "a, line 1: ", "correct the topic",
        files={"a": "topic read a/#/b\n"},
    ),
    Mistake(
        "rules in another encoding", "relay --acl a", 2, "a, line 1: it is not in UTF-8",
        "save the file in that", files={"a": b"\xff\xfe"},
    ),
    _of_relay(
        "nothing is allowed", "--acl-default deny", 2, "refuses every topic", "give --acl FILE"
    ),
    _of_relay(
        "anonymous clients, and no others", "--anonymous", 2, "--anonymous needs",
        "--passwords FILE",
    ),
    Mistake(
        "short secret for tokens", "relay --jwt-key j", 2, "has 32 bytes at least",
        "openssl rand -hex 32", files={"j": "hello"},
    ),
    Mistake(
        "file of tokens without one", "relay --http 127.0.0.1:0 --http-token t", 2,
        "t has no token", "openssl rand -hex 32", files={"t": ""},
    ),
    _of_relay("tokens of no pages", "--http-token {token}", 2, "--http-token needs", "--http HOST"),
    _of_relay(
        "origin without a scheme", "--origin example.com", 2, "'example.com' is no origin",
        "write https://HOST",
    ),
)  # fmt: skip

CONFIGURATION: Final = (
    Mistake(
        "configuration that is not there", "relay --config nowhere.toml", 2,
        "nowhere.toml: No such file", "check the path",
    ),
    Mistake(
        "the same from the environment", "relay", 2, "nowhere.toml: No such file", "check the path",
        environment={"CLEARFUNDS_CONFIG": "nowhere.toml"},
    ),
    Mistake(
        "configuration in another encoding", "relay --config c.toml", 2, "c.toml is not in UTF-8",
        "save it in that", files={"c.toml": b"\xff\xfe"},
    ),
    _of_file(
        "no TOML", "[relay]\nlimit_items =\n", "c.toml is not TOML: Invalid value (at line 2",
        "correct it there",
    ),
    _of_file(
        "key twice", "[relay]\npatience = 1\npatience = 2\n", "at line 3", "correct it there"
    ),
    _of_file(
        "unknown key", "[relay]\nlimit_itmes = 5\n", "[limit_itmes]", "Did you mean --limit-items?"
    ),
    _of_file(
        "key in a table of its own", "[relay.tls]\ncertificate = 'x'\n", "[tls][certificate]",
        "Did you mean --tls-certificate?",
    ),
    _of_file("unknown table", "[rely]\npatience = 5\n", "rely is not a com", "did you mean relay"),
    _of_file(
        "text for a number", "[relay]\nlimit_items = 'many'\n", "[limit_items]",
        "is not a whole number",
    ),
    _of_file(
        "true for a number", "[relay]\nlimit_items = true\n", '[limit_items]: "true"',
        "is not a whole number",
    ),
    _of_file(
        "date for seconds", "[relay]\npatience = 2026-01-01\n", "[patience]",
        "is not a number of seconds",
    ),
    _of_file(
        "text for a switch", "[relay]\nfair = 'perhaps'\n", '[fair]: "perhaps"',
        'neither "true" nor "false"',
    ),
    _of_file(
        "unknown key of a tenant", "[[relay.tenant]]\nname = 'a'\nusr = 'x'\n", "unknown key 'usr'",
        "keys: user, ",
    ),
    _of_file("tenant without a name", "[[relay.tenant]]\nuser = 'x'\n", "[tenant]", "has no name"),
    Mistake(
        "two configurations", "relay --config a --config b", 2, "--config is given more than once",
        "give it once",
    ),
    Mistake(
        "value in the environment", "relay", 2, 'CLEARFUNDS_RELAY_LIMIT_ITEMS: "many"',
        "is not a whole number", environment={"CLEARFUNDS_RELAY_LIMIT_ITEMS": "many"},
    ),
)  # fmt: skip

OPTIONS: Final = (
    _of_relay("unknown option", "--limit-itmes 5", 2, "--limit-itmes", "mean --limit-items?"),
    _of_relay("negative number", "--limit-items -5", 2, '"-5" for --limit-items', "Must be >= 1"),
    _of_relay("zero", "--limit-items 0", 2, '"0" for --limit-items', "Must be >= 1"),
    _of_relay("decimal unit", "--limit-bytes 8MB", 2, '--limit-bytes: "8MB"', '("8MiB")'),
    _of_relay("unit of time", "--patience 20s", 2, '--patience: "20s"', "not a number of seconds"),
    _of_relay("no value", "--limit-items", 2, "--limit-items needs a value", "give one after it"),
    _of_relay(
        "option twice", "--patience 1 --patience 2", 2, "--patience is given more than once",
        "give it once",
    ),
    _of_relay("unknown choice", "--stuck kill", 2, '"kill" for --stuck', 'Choose from: "wait"'),
    _of_relay(
        "percentage", "--memory-alarm 80", 2, '--memory-alarm: "80" is a percentage',
        "write 0.8",
    ),
    _of_relay("percent sign", "--memory-alarm 60%", 2, '--memory-alarm: "60%"', "write 0.6"),
    _of_relay(
        "above what MQTT has", "--receive-maximum 70000", 2, '"70000" for --receive-maximum',
        "Must be <= 65535",
    ),
    _of_relay(
        "limit above that of all", "--limit-items 100 --server-limit-items 10", 2,
        "--limit-items 100 is above --server-limit-items 10", "lower it",
    ),
    _of_relay(
        "limit of a user above its tenant's", "--tenant a,user=*,items=10,user-items=20", 2,
        "tenant a: user_items 20 is above items 10", "lower it",
    ),
    _of_relay(
        "tenant of nobody", "--tenant a", 2, "no client belongs to tenant a",
        "give user, client, listener or topic",
    ),
    _of_relay("limit of an account", "--account-limit press", 2, '"press"', '("press/*=500,2MiB")'),
    _of_relay(
        "policy of a subscription", "--subscription-policy 'a #=kill'", 2, '"a #=kill"',
        "one of wait, disconnect",
    ),
    _of_relay("too many workers", "--workers 100", 2, '"100" for --workers', "Must be <= 64"),
    _of_relay(
        "disk without a store", "--disk-limit 2MiB", 2, "--disk-limit needs --store",
        "give --kept-limit",
    ),
    Mistake(
        "port as an argument", "relay 1883", 2, "takes no positional arguments", "--listen 1883?"
    ),
)  # fmt: skip

STORING: Final = (
    _of_relay(
        "store of another relay", "--store {store}", 1, "{store} is in use by another process",
        "give each relay its own directory",
    ),
    _of_relay(
        "store of another relay, for workers", "--workers 2 --store {store}", 2,
        "{store} is the store of a single relay", "give another directory",
    ),
    _of_relay(
        "file as a store", "--store {file}", 1, "store in {file}: File exists", "give a directory"
    ),
    _of_relay("store where there is none", "--store /proc/x", 1, "store in /proc/x", "is gone"),
    Mistake(
        "directory with something else", "relay --listen mqtt://127.0.0.1:0 --store s", 1,
        "s is not a store", "give an empty directory", files={"s/diary.txt": "hello"},
    ),
    Mistake(
        "store of another version", "relay --listen mqtt://127.0.0.1:0 --store s", 1,
        's is not a store that this version can read: clearfunds-store says "clearfunds store, '
        'format 9"', "use the version of clearfunds that made it",
        files={"s/clearfunds-store": "clearfunds store, format 9\n"},
    ),
    _of_relay(
        "file as a journal", "--journal {file}", 1, "no journal in {file} (File exists)",
        "name another directory",
    ),
    Mistake("store to look at", "store verify nowhere", 1, "nowhere is no directory", "--store"),
    Mistake(
        "directory without a store", "store verify .", 1, ". is not a store", "a relay's --store"
    ),
    Mistake(
        "store that runs", "store repair {store}", 1, "{store} is in use", "end that process"
    ),
    Mistake("unknown command of stores", "store fsck", 2, '"fsck"', "commands: verify, repair"),
)  # fmt: skip

CLUSTERING: Final = (
    _of_relay(
        "cluster of nobody", "--cluster nats://127.0.0.1:{free}", 1, "127.0.0.1:{free}",
        "is a server listening there?",
    ),
    _of_relay(
        "cluster by HTTP", "--cluster http://127.0.0.1:8222", 2, "--cluster: 'http://",
        "write nats://HOST:PORT",
    ),
    _of_relay(
        "name without a cluster", "--name a", 2, "--name needs", "--cluster nats://HOST:PORT"
    ),
    Mistake("two servers of NATS", "cluster up --nats 2", 2, "--nats is 1, or 3", "outvote"),
    Mistake(
        "directory of a cluster", "cluster up --http none --directory {file}/x", 1,
        "--directory {file}/x: Not a directory", "check the path",
    ),
    Mistake("unknown command of clusters", "cluster start", 2, '"start"', "commands: up"),
)  # fmt: skip

PUBLISHING: Final = (
    Mistake(
        "no server", "pub -t a -m x --url 127.0.0.1:{free}", 1, "127.0.0.1 port {free}",
        "is a server listening there?",
    ),
    Mistake(
        "no server at a socket", "pub -t a -m x --url mqtt+unix:///nowhere/s", 1, "/nowhere/s",
        "is a server listening there?",
    ),
    Mistake(
        "unknown host", "pub -t a -m x --url nowhere.invalid", 1, "nowhere.invalid port 1883",
        "check the host's name",
    ),
    Mistake(
        "wrong password", "pub -t a -m x --url {mqtt} --username anna --password wrong", 1,
        "bad user name or password", "check the user name and the password",
    ),
    Mistake(
        "no password", "pub -t a -m x --url {mqtt}", 1, "not authorized",
        "check the user name and the password",
    ),
    Mistake(
        "password without a user", "pub -t a -m x --url {mqtt} --password x", 2, "a password",
        "needs a user name",
    ),
    Mistake(
        "port for TLS without TLS", "pub -t a -m x --url mqtt://127.0.0.1:{tls_port}", 1,
        "closed the connection instead of answering", "only with TLS (mqtts://)",
    ),
    Mistake(
        "TLS at a port without it", "pub -t a -m x --url mqtts://127.0.0.1:{mqtt_port}", 1,
        "within the TLS handshake", "does it speak TLS on that port?",
    ),
    Mistake(
        "authority not given", "pub -t a -m x --url {mqtts}", 1, "is not trusted", "--tls-ca FILE"
    ),
    Mistake(
        "authority of another", "pub -t a -m x --url {mqtts} --tls-ca {foreign_ca}", 1,
        "is not trusted", "--tls-ca FILE",
    ),
    Mistake(
        "authority that is not there", "pub -t a -m x --url {mqtts} --tls-ca nowhere", 2,
        "nowhere: No such file", "check the path",
    ),
    Mistake(
        "authority without TLS", "pub -t a -m x --url {mqtt} --tls-ca {ca}", 2,
        "--tls-ca needs TLS", "give mqtts://HOST",
    ),
    Mistake(
        "expired certificate", "pub -t a -m x --url {expired} --tls-ca {ca}", 1,
        "certificate has expired", "or this machine's clock is wrong",
    ),
    Mistake("wildcard", "pub -t a/# -m x --url {mqtt} {login}", 2, "'a/#'", "publish to one topic"),
    Mistake(
        "empty topic", "pub -t '' -m x --url {mqtt} {login}", 2, "a topic name must",
        "have at least one character",
    ),
    Mistake("no topic", "pub -m x", 2, "--topic is missing", "pub needs it"),
    Mistake("option misspelt", "pub --topc a -m x", 2, "--topc", "did you mean --topic?"),
    Mistake("no payload", "pub -t a -f nowhere", 2, "nowhere: No such file", "check the path"),
    Mistake("two payloads", "pub -t a -f x -m x", 2, "--message and --file", "exclude each other"),
    Mistake("unknown QoS", "pub -t a -m x --qos 3", 2, '"3" for --qos', "Choose from: 0, 1, 2"),
    Mistake("page as a server", "pub -t a -m x --url http://127.0.0.1", 2, '"http://', "write mqtt://"),
)  # fmt: skip

SUBSCRIBING: Final = (
    Mistake("nothing to subscribe to", "sub", 2, "no topic", "clearfunds sub 'flights/#'"),
    Mistake(
        "no server to subscribe at", "sub a --url 127.0.0.1:{free}", 1, "127.0.0.1 port {free}",
        "is a server listening there?",
    ),
    Mistake(
        "# in the middle", "sub a/#/b --url {mqtt} {login}", 2, "'a/#/b'",
        "must be the last character",
    ),
    Mistake("+ in a word", "sub a+/b --url {mqtt} {login}", 2, "'a+/b'", "a level of its own"),
    Mistake("unknown QoS of a subscription", "sub a --qos 3", 2, '"3" for --qos', "0, 1, 2"),
    Mistake(
        "session of nobody", "sub a --persistent", 2, "--persistent needs", "--client-id"
    ),
    Mistake("unknown format", "sub a --format xml", 2, '"xml" for --format', '"text", "json"'),
)  # fmt: skip

LOAD: Final = (
    Mistake(
        "no server to load", "perf --url mqtt://127.0.0.1:{free} --seconds 1", 1,
        "127.0.0.1:{free}", "is a server listening there?",
    ),
    Mistake("rate", "perf --rate fast", 2, '--rate: "fast"', '("1000:10,0:5")'),
    Mistake("number of publishers", "perf --publishers x", 2, '--publishers: "x"', "whole number"),
    Mistake("more slow than there are", "perf --slow 5", 2, "5 slow subscribers of 1", "--slow"),
    Mistake(
        "scenario's field", "perf --scenario s", 2, "s: scenario 1: a scenario has no field rat",
        "did you mean rate?", files={"s": "[[scenario]]\nrat = 5\n"},
    ),
    Mistake(
        "scenario that is no TOML", "perf --scenario s", 2, "s is not TOML", "correct it there",
        files={"s": "[[scenario]\n"},
    ),
    Mistake(
        "figures in no folder", "perf --csv /nowhere/x.csv", 1, "/nowhere/x.csv: No such file",
        "check the path",
    ),
    Mistake(
        "picture in no folder", "demo --picture /nowhere/x.svg", 1, "/nowhere/x.svg: No such file",
        "check the path",
    ),
    Mistake("days of a month", "demo --days 40", 2, '"40" for --days', "Must be <= 31"),
)  # fmt: skip

LOOKING: Final = (
    Mistake(
        "no pages", "top 127.0.0.1:{free} --once", 1, "http://127.0.0.1:{free}: Connection refused",
        "--http HOST:PORT",
    ),
    Mistake(
        "pages of an unknown host", "top nowhere.invalid --once", 1, "http://nowhere.invalid:9100",
        "check the host's name",
    ),
    Mistake("no token", "top {http} --once", 1, "answers 401", "--token-file FILE"),
    Mistake("wrong token", "top {http} --once --token x", 1, "answers 401", "--token-file FILE"),
    Mistake(
        "no file of a token", "top {http} --once --token-file nowhere", 2, "nowhere: No such file",
        "check the path",
    ),
    Mistake(
        "port for MQTT", "top 127.0.0.1:{mqtt_port} --once", 1, "is not HTTP",
        "the port of the relay's --http?",
    ),
    Mistake("address of a server", "top {mqtt} --once", 2, '"{mqtt}"', "write http://HOST:PORT"),
    Mistake(
        "https at a port without it", "top https://127.0.0.1:{http_port} --once", 1,
        "does not speak TLS", "is that its port for TLS?",
    ),
    Mistake("order of accounts", "top --sort name", 2, '"name" for --sort', '"debt", "waited"'),
    Mistake("nobody to trace", "trace", 2, "--account is missing", "trace needs it"),
    Mistake(
        "unknown account", "trace nobody --url {http} --token-file {token}", 1,
        "No account is called 'nobody'", "The most like it",
    ),
    Mistake("no books", "audit", 2, "give the URL", "http://HOST:PORT"),
    Mistake(
        "books of nobody", "audit http://127.0.0.1:{free}", 1, "http://127.0.0.1:{free}",
        "--http HOST:PORT",
    ),
    Mistake(
        "books of no cluster", "audit {http} --cluster --token-file {token}", 1,
        "{http} is the page of one relay", "leave --cluster out",
    ),
    Mistake(
        "books of a cluster of nobody", "audit http://127.0.0.1:{free} --cluster", 1,
        "http://127.0.0.1:{free}", "--http HOST:PORT",
    ),
    Mistake("port of books", "audit http://127.0.0.1:x", 2, '"http://127.0.0.1:x"', "HOST:PORT"),
    Mistake(
        "queues of nobody", "queues list http://127.0.0.1:{free}", 1, "http://127.0.0.1:{free}",
        "--http HOST:PORT",
    ),
    Mistake("queues without a host", "queues list http://", 2, '"http://"', "write http://HOST"),
    Mistake("unknown command of queues", "queues lst", 2, '"lst"', 'Did you mean "list"?'),
    Mistake(
        "unknown queue", "queues show --url {http} jobs --token-file {token}", 1,
        "no queue jobs in virtual host /", "`clearfunds queues list` has those that are there",
    ),
    Mistake(
        "unknown queue to purge", "queues purge jobs --url {amqp}", 1, "no queue 'jobs'",
        "check the name",
    ),
    Mistake(
        "password of a broker", "queues purge jobs --url amqp://anna:wrong@127.0.0.1:{amqp_port}",
        1, "ACCESS_REFUSED", "check the user and the password",
    ),
    Mistake(
        "virtual host of a broker", "queues purge jobs --url {amqp}/nowhere", 1, "vhost nowhere",
        "check the virtual host",
    ),
    Mistake(
        "broker of nobody", "queues purge jobs --url amqp://127.0.0.1:{free}", 1,
        "cannot reach 127.0.0.1:{free}", "is a server listening there?",
    ),
    Mistake("queue to itself", "queues move a a", 2, "the two queues", "have to be different"),
)  # fmt: skip

OTHERS: Final = (
    Mistake("unknown command", "rely", 2, '"rely"', 'Did you mean "relay"?'),
    Mistake("option in front", "--limit-items 5 relay", 2, "--limit-items", "give it first"),
    Mistake(
        "journal that is not there", "report nowhere", 1, "nowhere is not there",
        "`clearfunds relay --journal` has",
    ),
    Mistake("no journal here", "journal verify j", 1, "journal j is not there", "--journal"),
    Mistake("journal with nothing", "report .", 1, "nothing in the journal .", "--journal"),
    Mistake(
        "no Java", "report j --engine spark", 1, "JAVA_HOME is /nowhere",
        "install Java 17 or newer",
        files={"j/settlements/date=2026-01-01/hour=00/x.parquet": ""},
        environment={"JAVA_HOME": "/nowhere"},
    ),
    Mistake("target of a report", "report . --target fast", 2, '--target: "fast"', '("100ms")'),
    Mistake("nothing to mint", "mint", 2, "give --key-file FILE", "--new-key to make a key"),
    Mistake("no key", "mint --key-file nowhere", 2, "nowhere: No such file", "check the path"),
    Mistake(
        "key that is none", "mint --key-file k", 2, "k: a key has only hex digits", "two for each",
        files={"k": "xyz"},
    ),
    Mistake(
        "key that is there", "mint --key-file k --new-key", 2, "k exists and is not overwritten",
        "leave --new-key out", files={"k": "00" * 32},
    ),
    Mistake(
        "unknown caveat", "mint --key-file k --caveat '<frob x>'", 2, "--caveat <frob x>",
        "no caveat is called 'frob'", files={"k": "00" * 32},
    ),
    Mistake("no user", "passwd p", 2, "USER is missing", "passwd needs it"),
    Mistake(
        "user with a colon", "passwd p an:na", 2, "'an:na' cannot be a user",
        "give a name without a colon", stdin="x\n",
    ),
    Mistake("empty password", "passwd p anna", 2, "the password is empty", "give one", stdin="\n"),
    Mistake(
        "passwords in no folder", "passwd /nowhere/p anna", 1, "/nowhere/p: No such file",
        "check the path", stdin="x\n",
    ),
    Mistake(
        "something else than passwords", "passwd p anna", 2, "p is not in UTF-8", "give another",
        files={"p": b"\xff\xfe"}, stdin="x\n",
    ),
    Mistake(
        "user to delete", "passwd p anna --delete", 2, "p has no user 'anna'",
        "give one of those in it", files={"p": ""},
    ),
    Mistake(
        "client to disconnect where nobody listens", "ctl disconnect x --url 127.0.0.1:{free}", 1,
        "cannot reach http://127.0.0.1:{free}: Connection refused", "--http HOST:PORT",
    ),
    Mistake(
        "client that is not there", "ctl disconnect nobody --url {http} --token-file {token}", 1,
        "No client nobody is connected", "`clearfunds top` has those that are",
    ),
    Mistake("no token for it", "ctl limit x --items 5 --url {http}", 1, "401", "--token-file"),
    Mistake(
        "weight of no tenant", "ctl weight server 2 --url {http} --token-file {token}", 1,
        "not a tenant's account", "(tenant/NAME)",
    ),
    Mistake("unknown policy to set", "ctl policy x kill", 2, 'POLICY: "kill"', 'none of "wait", "'),
    Mistake("unknown command of ctl", "ctl kick x", 2, '"kick"', "commands: disconnect, limit"),
    Mistake("options of no command", "config show rely", 2, '"rely"', 'Did you mean "relay"?'),
    Mistake(
        "open pages in a checked configuration", "config check c.toml", 1, "0.0.0.0 would be open",
        "say that it is meant so", files={"c.toml": "[relay]\nhttp = '0.0.0.0:9100'\n"},
    ),
    Mistake("limit without an amount", "ctl limit x", 2, "give --items", "--bytes, or both"),
    Mistake(
        "limit of nothing", "ctl limit x --items 0", 2,
        '"0" is not at least 1', "none for no limit",
    ),
    Mistake(
        "unknown level to set", "ctl log-level loud", 2, '"loud" for LEVEL', '"debug", "info"',
    ),
    Mistake("nothing to check", "config check c.toml", 1, "c.toml", "check"),
    Mistake(
        "mistake in a checked configuration", "config check c.toml", 1, "limit_itms",
        "limit-items", files={"c.toml": "[relay]\nlimit_itms = 5\n"},
    ),
    Mistake("unknown shell", "completion powershell", 2, '"powershell" for SHELL', '"bash", "zsh"'),
)  # fmt: skip

MISTAKES: Final = (
    *(*LISTENING, *CERTIFICATES, *USERS, *CONFIGURATION, *OPTIONS, *STORING, *CLUSTERING),
    *(*PUBLISHING, *SUBSCRIBING, *LOAD, *LOOKING, *OTHERS),
)


Surroundings = dict[str, str]
"""What is there, by its name in the commands: servers, ports, files."""


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    """Run a relay, and one with an expired certificate, for all tests; prepare files."""
    folder = tmp_path_factory.mktemp("surroundings")
    papers = papers_in(folder / "papers")
    shown, other = papers.for_server(), papers.issue("other", "localhost")
    places = {
        "ca": papers.trusted,
        "foreign_ca": papers_in(folder / "foreign").trusted,
        "chain": shown.chain,
        "key": shown.key,
        "other_key": other.key,
        "open_key": folder / "open.key",
        "store": folder / "store",
        "token": folder / "token",
        "file": folder / "file",
        "passwords": folder / "passwords",
    }
    assert shown.key is not None
    (folder / "open.key").write_bytes(papers.folder.joinpath("server.key").read_bytes())
    (folder / "open.key").chmod(0o644)
    (folder / "file").touch()
    (folder / "token").write_text("let-me-in-let-me-in\n")
    (folder / "token").chmod(0o600)
    found = {name: str(place) for name, place in places.items()}
    assert not forks.clearfunds("passwd", found["passwords"], "anna", stdin="secret\n").returncode
    _write_expired(papers, folder / "expired.pem")
    first = _relay(
        *(f"--listen={name}://127.0.0.1:0" for name in ("mqtt+tcp", "mqtt+tls", "amqp+tcp")),
        *("--http=127.0.0.1:0", "--http-token", found["token"], "--store", found["store"]),
        *("--tls-certificate", found["chain"], "--tls-key", found["key"]),
        *("--passwords", found["passwords"]),
    )
    second = _relay("--listen=mqtts://127.0.0.1:0", "--tls-certificate", f"{folder}/expired.pem")
    with first as relay, second as old, socket.create_server(("127.0.0.1", 0)) as taken:
        urls, (of_expired,) = _urls(relay), _urls(old)
        mqtt, mqtts, amqp, http = urls
        ports = [url.rpartition(":")[2] for url in urls]
        yield {
            **found,
            **dict(zip(("mqtt_port", "tls_port", "amqp_port", "http_port"), ports, strict=True)),
            "mqtt": mqtt,
            "mqtts": mqtts,
            "amqp": amqp.replace("//", "//anna:secret@").replace("+tcp", ""),
            "http": http,
            "expired": of_expired,
            "login": "--username anna --password secret",
            "taken": str(taken.getsockname()[1]),
            "free": str(lasting_port()),
            "long": "x" * 120,
        }


def _write_expired(papers: Papers, chain: Path) -> None:
    """Write a certificate that was valid until yesterday, and its key."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expired = papers.authority.issue_cert(
        "127.0.0.1", not_before=yesterday - timedelta(days=9), not_after=yesterday
    )
    expired.private_key_and_cert_chain_pem.write_to_path(chain)
    chain.chmod(0o600)


@contextmanager
def _relay(*options: str) -> Generator[RelayUnderTest]:
    """Run a relay for the length of a block."""
    relay = RelayUnderTest(options)
    try:
        yield relay
    finally:
        relay.close()


def _urls(relay: RelayUnderTest) -> list[str]:
    """Wait until a relay is ready; return its URLs."""
    return [str(url) for line in relay.ready() for url in line.values()]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.title)
def test_a_mistake_is_one_line_with_what_to_do(
    mistake: Mistake, surroundings: Surroundings, clearfunds: Clearfunds, tmp_path: Path
) -> None:
    for name, content in mistake.files.items():
        file = tmp_path / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(mistake.mode)
    said, advised = (each.format_map(surroundings) for each in (mistake.says, mistake.advises))
    done = clearfunds(
        *shlex.split(mistake.command.format_map(surroundings)),
        stdin=mistake.stdin,
        cwd=tmp_path,
        env=_environment(mistake.environment),
    )
    assert re.fullmatch(r"clearfunds( [a-z]+)?: [^\n]+\n", done.stderr), done.stderr
    assert said in done.stderr
    assert advised in done.stderr
    assert not PYTHONS_WORDS.search(done.stderr)
    assert done.returncode == mistake.status, done.stderr


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **more}


def test_without_a_command_there_is_help_and_each_command_has_a_mistake(
    clearfunds: Clearfunds,
) -> None:
    done = clearfunds()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: clearfunds COMMAND")
    commands = re.findall(r"^│ ([a-z]+) +[A-Z]", done.stdout, re.MULTILINE)
    assert "relay" in commands
    assert {each.command.split()[0] for each in MISTAKES} >= {*commands}
    assert len({each.title for each in MISTAKES}) == len(MISTAKES) >= 60


def test_a_relay_with_an_expired_certificate_says_so(tmp_path: Path) -> None:
    chain = tmp_path / "expired.pem"
    _write_expired(papers_in(tmp_path), chain)
    with _relay("--listen=mqtts://127.0.0.1:0", f"--tls-certificate={chain}") as relay:
        relay.ready()
    (told,) = (line for line in relay.log if " WARNING " in line)
    assert told.endswith(
        f" WARNING clearfunds.relay: {chain}: certificate has expired: clients will refuse it; "
        "give one that is valid, and send SIGHUP\n"
    )


def test_a_port_for_the_superuser(complaint: Clearfunds, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("socket.socket.bind", bind)
    done = complaint("relay", "--listen", "mqtt://127.0.0.1:80")
    assert done.returncode == 1
    assert done.stderr == (
        "clearfunds relay: cannot listen on mqtt+tcp://127.0.0.1:80: Permission denied; choose a "
        "port from 1024 on, or allow this process the lower ones (CAP_NET_BIND_SERVICE)\n"
    )
