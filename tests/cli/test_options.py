"""Options: one precedence for every kind of them, and mistakes that are told in one line."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from clearfunds._cli import run
from clearfunds._cli._relay_options import Options
from clearfunds._cli._tls_options import Tls
from clearfunds._cli._token_options import TokenOptions
from clearfunds.access import AccountLimit, AccountRate, Tenant
from clearfunds.relay import RelaySettings
from clearfunds.transports import PublicationPolicy, SubscriptionPolicy, TopicAccount
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line

if TYPE_CHECKING:
    from collections.abc import Callable

    Settle = Callable[..., RelaySettings]

DEFAULTS = RelaySettings()


# field: (command line, environment, TOML), then the three values in that order. One or more of
# each kind: list, optional text, count, optional count, size, optional size, seconds, choice.
KINDS = {
    "listen": (
        ["--listen", "mqtt+tcp://127.0.0.1:1", "--listen", "mqtt+tcp://127.0.0.1:2"],
        "mqtt+tcp://127.0.0.1:3 mqtt+tcp://127.0.0.1:4",
        '["mqtt+tcp://127.0.0.1:5", "mqtt+unix:///tmp/with space"]',
        ("mqtt+tcp://127.0.0.1:1", "mqtt+tcp://127.0.0.1:2"),
        ("mqtt+tcp://127.0.0.1:3", "mqtt+tcp://127.0.0.1:4"),
        ("mqtt+tcp://127.0.0.1:5", "mqtt+unix:///tmp/with space"),
    ),
    "origin": (
        ["--origin", "https://a.example", "--origin", "http://B.example:81"],
        "https://c.example https://d.example",
        '["https://e.example"]',
        ("https://a.example", "http://b.example:81"),
        ("https://c.example", "https://d.example"),
        ("https://e.example",),
    ),
    "http": (
        *(["--http", "none"], "127.0.0.1:2", '"127.0.0.1:3"'),
        *(None, "127.0.0.1:2", "127.0.0.1:3"),
    ),
    "idle_timeout": (["--idle-timeout", "1.5"], "none", '"60"', 1.5, None, 60.0),
    "limit_items": (["--limit-items", "11"], "12", "13", 11, 12, 13),
    "limit_bytes": (["--limit-bytes", "1MiB"], "2_000", '"3 KiB"', 1 << 20, 2_000, 3_072),
    "account_limit": (
        ["--account-limit", "a=b,c=1", "--account-limit", "press/*=2,3KiB"],
        "x=none,none y=NONE,1_000",
        '["with space, and = =4,none"]',
        (AccountLimit("a=b,c", 1), AccountLimit("press/*", 2, 3072)),
        (AccountLimit("x", None, None), AccountLimit("y", None, 1000)),
        (AccountLimit("with space, and = ", 4, None),),
    ),
    "rate": (
        ["--rate", "a=b,c=1.5", "--rate", "press/*=2,3KiB"],
        "x=none,4 y=1_000",
        '["with space, and = =4,none"]',
        (AccountRate("a=b,c", 1.5), AccountRate("press/*", 2.0, 3072.0)),
        (AccountRate("x", None, 4.0), AccountRate("y", 1000.0)),
        (AccountRate("with space, and = ", 4.0, None),),
    ),
    "tenant": (
        ["--tenant", "a,user=x,user=y*,topic=t/+,weight=2.5", "--tenant", "b, default, users"],
        "a,client=c,user-items=5,user_bytes=3KiB,rate=0.5,rate-bytes=1MiB b,listener=m:*,latency=1",
        (
            '[{name = "a", user = ["x,y", "z"], client = "c", items = 5, bytes = "3KiB", '
            'default = true, users = true, weight = 2, user-rate = 7, kept = 9}, "b,user=x"]'
        ),
        (
            Tenant(name="a", user=("x", "y*"), topic=("t/+",), weight=2.5),
            Tenant(name="b", default=True, users=True),
        ),
        (
            Tenant(
                name="a", client=("c",), user_items=5, user_bytes=3072, rate=0.5, rate_bytes=1 << 20
            ),
            Tenant(name="b", listener=("m:*",), latency=1.0),
        ),
        (
            Tenant(
                name="a",
                user=("x,y", "z"),
                client=("c",),
                items=5,
                bytes=3072,
                default=True,
                users=True,
                weight=2.0,
                user_rate=7.0,
                kept=9,
            ),
            Tenant(name="b", user=("x",)),
        ),
    ),
    "throttled_after": (["--throttled-after", "0.5"], "none", "2", 0.5, None, 2.0),
    "server_limit_items": (["--server-limit-items", "none"], "21", "22", None, 21, 22),
    "server_limit_bytes": (["--server-limit-bytes", "3MiB"], "None", "4096", 3 << 20, None, 4096),
    "grace": (["--grace", "1.5"], "0", "2", 1.5, 0.0, 2.0),
    "busy_poll": (["--busy-poll", "0.001"], "0.002", "0.5", 0.001, 0.002, 0.5),
    "patience": (["--patience", "4"], "5.5", "6.5", 4.0, 5.5, 6.5),
    "stuck": (["--stuck", "wait"], "spill", '"conflate"', "wait", "spill", "conflate"),
    "subscription_policy": (
        ["--subscription-policy", "a* b/#=wait", "--subscription-policy", "a c d=e=spill,0.5"],
        "dash-* sensors/+=conflate,2 * #=drop_oldest",
        '["p  alarms/# = drop_newest , 3", "* #=disconnect"]',
        (
            SubscriptionPolicy("a*", "b/#", "wait"),
            SubscriptionPolicy("a", "c d=e", "spill", 0.5),
        ),
        (
            SubscriptionPolicy("dash-*", "sensors/+", "conflate", 2.0),
            SubscriptionPolicy("*", "#", "drop_oldest"),
        ),
        (
            SubscriptionPolicy("p", "alarms/#", "drop_newest", 3.0),
            SubscriptionPolicy("*", "#", "disconnect"),
        ),
    ),
    "publication_policy": (
        ["--publication-policy", "a* b/#=refuse", "--publication-policy", "a c d=e=shed"],
        "sensor-* raw/+=shed * #=wait",
        '["p  jobs/# = refuse"]',
        (PublicationPolicy("a*", "b/#", "refuse"), PublicationPolicy("a", "c d=e", "shed")),
        (PublicationPolicy("sensor-*", "raw/+", "shed"), PublicationPolicy("*", "#", "wait")),
        (PublicationPolicy("p", "jobs/#", "refuse"),),
    ),
    "topic_account": (
        ["--topic-account", "a* b/#", "--topic-account", "a +/c d"],
        "sensor-* raw/+ * #",
        '["p  jobs/# "]',
        (TopicAccount("a*", "b/#"), TopicAccount("a", "+/c d")),
        (TopicAccount("sensor-*", "raw/+"), TopicAccount("*", "#")),
        (TopicAccount("p", "jobs/#"),),
    ),
    "max_topic_accounts": (["--max-topic-accounts", "11"], "12", "13", 11, 12, 13),
    "behind_items": (["--behind-items", "11"], "none", "13", 11, None, 13),
    "behind_bytes": (["--behind-bytes", "1KiB"], "2KiB", '"none"', 1024, 2048, None),
    "behind_limit": (["--behind-limit", "none"], "2MiB", "3", None, 2 << 20, 3),
    "fair": (["--no-fair"], "true", "false", False, True, False),
    "unsent_bytes": (["--unsent-bytes", "none"], "64KiB", "3", None, 64 << 10, 3),
    "slow_wait": (["--slow-wait", "0.5"], "none", "2", 0.5, None, 2.0),
    "max_connections": (["--max-connections", "41"], "42", "43", 41, 42, 43),
    "connect_timeout": (["--connect-timeout", "7"], "8", "9", 7.0, 8.0, 9.0),
    "max_text_size": (["--max-text-size", "1KiB"], "2KiB", '"3KiB"', 1024, 2048, 3072),
    "max_depth": (["--max-depth", "51"], "52", "53", 51, 52, 53),
    "max_references": (["--max-references", "61"], "62", "63", 61, 62, 63),
    "max_assertions": (["--max-assertions", "71"], "72", "73", 71, 72, 73),
    "max_caveats_size": (["--max-caveats-size", "81"], "82", "83", 81, 82, 83),
    "resolve_answer": (
        *(["--resolve-answer", "accepted"], "ok", '"accepted"'),
        *("accepted", "ok", "accepted"),
    ),
    "turn_credit": (["--turn-credit", "off"], "request", '"accept"', "off", "request", "accept"),
    "sturdy_oid": (["--sturdy-oid", "a b"], "c d", '"e"', "a b", "c d", "e"),
    "bind_oid": (["--bind-oid", "a b"], "c d", '"e"', "a b", "c d", "e"),
    "max_bound_names": (["--max-bound-names", "91"], "92", "93", 91, 92, 93),
    "names_per_connection": (["--names-per-connection", "94"], "95", "96", 94, 95, 96),
    "max_routes": (["--max-routes", "97"], "98", "99", 97, 98, 99),
    "routes_per_connection": (["--routes-per-connection", "7"], "8", "9", 7, 8, 9),
}


def option(setting: str) -> str:
    """Name the option of a setting: a key is only ever given as a file."""
    return "sturdy_key_file" if setting == "sturdy_key" else setting


def test_command_line_over_environment_over_file_over_default(settle: Settle) -> None:
    toml = {field: kind[2] for field, kind in KINDS.items()}
    file = "\n".join(("[relay]", *(f"{field} = {value}" for field, value in toml.items())))
    dashed = "\n".join(
        ("[relay]", *(f"{field.replace('_', '-')} = {value}" for field, value in toml.items()))
    )
    env = {f"CLEARFUNDS_RELAY_{field.upper()}": kind[1] for field, kind in KINDS.items()}
    line = [option for kind in KINDS.values() for option in kind[0]]

    def given(settings: RelaySettings) -> dict[str, object]:
        return {field: getattr(settings, field) for field in KINDS}

    of_line, of_environment, of_file = (
        {field: kind[place] for field, kind in KINDS.items()} for place in (3, 4, 5)
    )
    assert settle() == DEFAULTS
    assert given(settle(toml=file)) == of_file
    assert given(settle(toml=dashed)) == of_file
    assert given(settle(toml=file, env=env)) == of_environment
    assert given(settle(*line, toml=file, env=env)) == of_line


def test_sources_mix_option_by_option(settle: Settle) -> None:
    settings = settle(
        *("--limit-items", "1"),
        env={"CLEARFUNDS_RELAY_LIMIT_ITEMS": "2", "CLEARFUNDS_RELAY_LIMIT_BYTES": "2"},
        toml="[relay]\nlimit_items = 3\nlimit_bytes = 3\npatience = 3\n\n[pub]\nurl = 'x'\n",
    )
    assert settings == attrs.evolve(DEFAULTS, limit_items=1, limit_bytes=2, patience=3.0)


def test_the_file_can_be_named_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settle: Settle
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[relay]\nlimit_items = 99\n", "utf-8")
    monkeypatch.setenv("CLEARFUNDS_CONFIG", str(other))
    assert settle(toml="[relay]\nlimit_items = 98").limit_items == 98
    found: list[RelaySettings] = []

    def keep(_: object, settings: RelaySettings, __: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr("clearfunds._cli._relay.run_async", keep)
    assert run(["relay"]) == 0
    assert found[0].limit_items == 99


def test_tenants_may_be_tables_of_a_file(settle: Settle) -> None:
    toml = """
    [[relay.tenant]]
    name = "press"
    user = ["newsroom", "a,b"]
    weight = 3

    [[relay.tenant]]
    name = "rest"
    default = true
    """
    assert settle(toml=toml).tenant == (
        Tenant(name="press", user=("newsroom", "a,b"), weight=3.0),
        Tenant(name="rest", default=True),
    )


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("press,user=a,weight=x", 'tenant press: weight is "x", which is not a number'),
        ("press,usr=a", "tenant press: unknown key 'usr'"),
        ("press,user", "tenant press: user in"),
        ("press,user=a,items=5.5", 'items is "5.5", which is not a whole number'),
        ("press,user=a,items=5,items=6", "tenant press: items is given twice"),
        ("press,user=a,bytes=many", 'bytes is "many", which is not a size'),
        ("press,topic=a#", "tenant press: # must be alone"),
        ("press,default=maybe", "it must be true or false"),
        ("user=a", "does not begin with a tenant's name"),
        ("a/b,default", "cannot be a tenant's name"),
        ("press,weight=2", "no client belongs to tenant press"),
        ('{"user": "x"}', "a tenant has no name"),
        ('{"name": "x", "user": 3}', "tenant x: user is 3; it must be a pattern"),
        ('{"name": "x", "user": "a"', "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_said_in_one_line(
    entry: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["relay", "--tenant", entry]) == 2
    error = capsys.readouterr().err
    assert why in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--max-inflight", "65536"], "Must be <= 65535"),
        (["--disk-limit", "20KiB"], "--disk-limit needs --store DIRECTORY"),
        (["--anonymous"], "--anonymous needs --passwords FILE or --jwt-key"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["relay", *options]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert len(error.splitlines()) == 1


def test_an_empty_list_of_limits_is_none(settle: Settle) -> None:
    assert settle(toml="[relay]\naccount_limit = []").account_limit == ()


def test_a_pattern_that_begins_with_a_bracket_is_no_list(settle: Settle) -> None:
    wanted = (AccountLimit("[ab]*", 1), AccountLimit("[1]", 2))
    assert settle(toml="[relay]\naccount_limit = ['[ab]*=1', '[1]=2']").account_limit == wanted
    line = ("--account-limit", "[ab]*=1", "--account-limit", "[1]=2")
    assert settle(*line).account_limit == wanted


def test_every_setting_has_an_option() -> None:
    grouped = {
        option(field.name) for each in (Options, Tls, TokenOptions) for field in attrs.fields(each)
    }
    named = {option(field.name) for field in attrs.fields(RelaySettings)}
    # Made of several options each.
    made = {field.name for group in (Tls, TokenOptions) for field in attrs.fields(group)}
    named = named - {"tls", "tokens"} | made
    assert grouped == named


def test_the_key_is_what_the_file_has(settle: Settle, tmp_path: Path) -> None:
    one, other = tmp_path / "one.key", tmp_path / "other.key"
    one.write_text(f"{bytes(range(32)).hex().upper()}\n")
    other.write_text("ff" * 16)
    for file in (one, other):
        file.chmod(0o600)
    assert settle().sturdy_key is None
    settings = settle("--sturdy-key-file", str(one))
    assert settings.sturdy_key == bytes(range(32))
    assert "sturdy_key" not in repr(settings)
    toml = f"[relay]\nsturdy_key_file = '{other}'\n"
    assert settle(toml=toml).sturdy_key == b"\xff" * 16
    env = {"CLEARFUNDS_RELAY_STURDY_KEY_FILE": str(one)}
    assert settle(toml=toml, env=env).sturdy_key == bytes(range(32))
    assert settle("--sturdy-key-file", str(other), env=env).sturdy_key == b"\xff" * 16


def test_the_certificates_are_those_of_the_files(settle: Settle, tmp_path: Path) -> None:
    papers = papers_in(tmp_path)
    shown = papers.for_server()
    assert settle().tls is None
    toml = f"[relay]\ntls_certificate = '{shown.chain}'\ntls_key = '{shown.key}'\n"
    settings = settle(toml=toml)
    assert settings.tls is not None
    assert settings.tls.context.verify_mode is ssl.CERT_NONE
    settings = settle(
        *("--tls-certificate", str(shown.chain), "--tls-key", str(shown.key)),
        env={"CLEARFUNDS_RELAY_TLS_CLIENT_CA": str(papers.trusted)},
    )
    assert settings.tls is not None
    assert settings.tls.context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("mode", "content", "said"),
    [
        (0o600, "00" * 16, []),
        (0o640, "00" * 16, []),
        (0o600, "00" * 15, ["has 15 bytes and can be guessed", "mint --new-key"]),
        (0o600, "", ["has 0 bytes"]),
    ],
)
def test_a_key_that_others_may_guess_is_a_warning(
    mode: int,
    content: str,
    said: list[str],
    settle: Settle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "relay.key"
    file.write_text(content)
    file.chmod(mode)
    assert settle("--sturdy-key-file", str(file)).sturdy_key == bytes.fromhex(content)
    log = capsys.readouterr().err
    assert log.count("\n") == log.count("WARNING clearfunds.relay: ") == bool(said)
    for word in said:
        assert word.replace("FILE", str(file)) in log
    assert not content or content not in log


@pytest.mark.parametrize("content", ["secret", "0", "00 0g", '#x"00"', "\xff", "0x00"])
def test_a_file_with_something_else_in_it_does_not_show_it(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "relay.key"
    file.write_bytes(content.encode("latin-1"))
    file.chmod(0o600)
    assert run(["relay", "--sturdy-key-file", str(file)]) == 2
    said = capsys.readouterr().err
    told = f"clearfunds relay: {file}: a key has only hex digits, two for each byte"
    assert said.startswith(told)
    assert said.count("\n") == 1
    assert content not in said.removeprefix(told)


def test_a_key_file_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["relay", "--sturdy-key-file", str(tmp_path / "no.key")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"clearfunds relay: {tmp_path / 'no.key'}: No such file or directory")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--sturdy-key-file", "FILE"),
        ("--passwords", "FILE"),
        ("--http", "127.0.0.1:0", "--http-token", "FILE"),
        ("--http", "127.0.0.1:0", "--http-password", "FILE"),
        ("--tls-certificate", "CHAIN", "--tls-key", "FILE"),
        ("--tls-certificate", "FILE"),
    ],
)
def test_a_secret_that_others_can_read_or_change_is_refused(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issued = papers_in(tmp_path).for_server()
    assert issued.chain is not None
    assert issued.key is not None
    chain, file = Path(issued.chain), tmp_path / "secret"
    if "CHAIN" in options:
        content = Path(issued.key).read_text()
    elif "--tls-certificate" in options:
        content = chain.read_text() + Path(issued.key).read_text()
    elif "password" in "".join(options):
        content = user_line("anna", b"secret")
    else:
        content = "00" * 16
    file.write_text(content)
    words = [word.replace("FILE", str(file)).replace("CHAIN", str(chain)) for word in options]
    for mode in (0o604, 0o644, 0o666, 0o602, 0o620, 0o660):
        file.chmod(mode)
        assert run(["relay", *words]) == 2
        said = capsys.readouterr().err
        can = "read" if mode & 0o004 else "change"
        told = f"clearfunds relay: others on this machine can {can} {file}, which has a secret"
        assert said.startswith(told)
        assert f"chmod 600 {file}" in said
        assert said.count("\n") == 1


# -- pages ----------------------------------------------------------------------------------------


def secret_file(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_who_may_look_at_the_pages(settle: Settle, tmp_path: Path) -> None:
    tokens = secret_file(tmp_path / "tokens", "a" * 20)
    users = write_users(tmp_path / "users", "anna")
    nothing = settle("--http", "127.0.0.1:0")
    assert (nothing.http_token, nothing.http_password, nothing.http_host) == (None, None, ())
    settings = settle(
        *("--http", "127.0.0.1:0", "--http-token", str(tokens), "--http-host", "relay"),
        *("--http-host", "relay.example"),
        toml=f"[relay]\nhttp_password = '{users}'\n",
    )
    assert settings.http_token is not None
    assert settings.http_token.check(b"a" * 20)
    assert settings.http_password is not None
    assert settings.http_password.check("anna", b"secret")
    assert settings.http_host == ("relay", "relay.example")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--http-token", "FILE"), "--http-token needs --http HOST:PORT"),
        (("--http-host", "relay"), "--http-host needs --http HOST:PORT"),
        (("--http", "127.0.0.1:0", "--http-token", "FILE"), "FILE, line 1: a token has at least"),
        (("--http", "127.0.0.1:0", "--http-password", "FILE"), "FILE, line 1: there is no colon"),
        (("--http", "https://127.0.0.1:0"), "https needs a certificate: give --tls-cert"),
        (("--http", "ftp://127.0.0.1:0"), "write host:port (port 0: any free), or https://"),
        (("--http", "http://127.0.0.1:0/page"), "write host:port (port 0: any free), or https://"),
    ],
)
def test_what_cannot_be_said_of_the_pages(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = secret_file(tmp_path / "secret", "geheim\n")
    assert run(["relay", *(word.replace("FILE", str(file)) for word in options)]) == 2
    told = capsys.readouterr().err
    assert said.replace("FILE", str(file)) in told
    assert told.count("\n") == 1
    assert "geheim" not in told


# -- passwords ------------------------------------------------------------------------------------


def write_users(file: Path, *users: str) -> Path:
    """Write a file of users whose password is `secret`, for nobody else to read."""
    file.write_text("".join(f"{user_line(user, b'secret')}\n" for user in users))
    file.chmod(0o600)
    return file


def users_of(settings: RelaySettings) -> set[str]:
    """Return who of two may come in."""
    passwords = settings.passwords
    assert passwords is not None
    return {user for user in ("anna", "bert") if passwords.check(user, b"secret")}


def test_the_passwords_are_what_the_file_has(settle: Settle, tmp_path: Path) -> None:
    one, other = write_users(tmp_path / "one", "anna"), write_users(tmp_path / "other", "bert")
    assert settle().passwords is None
    assert not settle().anonymous
    assert users_of(settle("--passwords", str(one))) == {"anna"}
    toml = f"[relay]\npasswords = '{other}'\nanonymous = true\n"
    settings = settle(toml=toml)
    assert users_of(settings) == {"bert"}
    assert settings.anonymous
    env = {"CLEARFUNDS_RELAY_PASSWORDS": str(one), "CLEARFUNDS_RELAY_ANONYMOUS": "false"}
    settings = settle(toml=toml, env=env)
    assert users_of(settings) == {"anna"}
    assert not settings.anonymous
    settings = settle("--passwords", str(other), "--anonymous", env=env)
    assert users_of(settings) == {"bert"}
    assert settings.anonymous


@pytest.mark.parametrize(
    ("mode", "users", "said"),
    [
        (0o600, ("anna",), []),
        (0o640, ("anna", "bert"), []),
        (0o600, (), ["FILE has no users in it", "mosquitto_passwd FILE USER adds one"]),
    ],
)
def test_passwords_that_are_nobodys_are_a_warning(
    mode: int,
    users: tuple[str, ...],
    said: list[str],
    settle: Settle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write_users(tmp_path / "users", *users)
    file.chmod(mode)
    assert users_of(settle("--passwords", str(file))) == set(users)
    log = capsys.readouterr().err
    assert log.count("\n") == log.count("WARNING clearfunds.relay: ") == bool(said)
    for word in said:
        assert word.replace("FILE", str(file)) in log


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"anna:geheim\n", "line 1: the password is not hashed"),
        (b"# users\ngeheim\n", "line 2: there is no colon"),
        (b"anna:$2b$12$geheim\n", "line 1: its hash is of an unknown kind"),
        (b"\xff:$7$geheim\n", "line 1: the user's name is not in UTF-8"),
    ],
)
def test_a_file_of_passwords_with_something_else_in_it_does_not_show_it(
    content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    file.write_bytes(content)
    file.chmod(0o600)
    assert run(["relay", "--passwords", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"clearfunds relay: {file}, {why}")
    assert said.count("\n") == 1
    assert "mosquitto_passwd" in said or "write the line anew" in said
    assert "geheim" not in said


def test_a_file_of_passwords_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["relay", "--passwords", str(tmp_path / "users")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"clearfunds relay: {tmp_path / 'users'}: No such file or directory")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "toml", "said"),
    [
        (["--limit-itms", "5"], "", ["--limit-itms", "--limit-items"]),
        (["--limit-items", "3.5"], "", ["--limit-items", "3.5", "whole number"]),
        (["--limit-items", "0"], "", ["--limit-items", "0"]),
        (["--limit-items"], "", ["--limit-items"]),
        (["--limit-bytes", "8MB"], "", ["--limit-bytes", "8MB", "MiB"]),
        (["--account-limit", "a"], "", ["--account-limit", '"a"', "PATTERN=ITEMS"]),
        (["--account-limit", "a=1,"], "", ["--account-limit", "a=1,", "PATTERN=ITEMS"]),
        (["--account-limit", "=1"], "", ["--account-limit", "=1", "PATTERN=ITEMS"]),
        (["--account-limit", "a=0"], "", ["--account-limit", "items must be at least 1", "0"]),
        (["--account-limit", "a=1,8MB"], "", ["--account-limit", "8MB", "PATTERN=ITEMS"]),
        ([], "[relay]\naccount_limit = ['a=1', 'b']", ["account_limit", "FILE", '"b"']),
        ([], "[relay]\naccount_limit = {a = 1}", ["account_limit", "FILE"]),
        (["--patience", "-1"], "", ["--patience", "-1"]),
        (["--patience", "nan"], "", ["--patience", "nan"]),
        (["--stuck", "panic"], "", ["--stuck", "panic", "wait", "disconnect"]),
        (["--subscription-policy", "a=wait"], "", ["--subscription-policy", '"a=wait"', "FILTER="]),
        (["--subscription-policy", "a #=panic"], "", ["a #=panic", "drop_oldest", "spill"]),
        (["--subscription-policy", "a b/#/c=wait"], "", ["b/#/c", "# must be alone"]),
        (["--subscription-policy", "a #=wait,x"], "", ["a #=wait,x", '"x" is not a number']),
        (["--subscription-policy", "a #=wait,-1"], "", ['"-1" is not a number of seconds']),
        (["--subscription-policy", "a #=wait,"], "", ['"" is not a number of seconds']),
        ([], "[relay]\nsubscription_policy = ['a #=wait', 'b']", ["subscription_policy", '"b"']),
        (["--publication-policy", "a=shed"], "", ["--publication-policy", '"a=shed"', "FILTER="]),
        (["--publication-policy", "a #=drop"], "", ["a #=drop", "wait, refuse, shed"]),
        (["--publication-policy", "a b/#/c=shed"], "", ["b/#/c", "# must be alone"]),
        ([], "[relay]\npublication_policy = ['a #=shed', 'b']", ["publication_policy", '"b"']),
        (["--topic-account", "a"], "", ["--topic-account", '"a"', "CLIENT FILTER"]),
        (["--topic-account", "a b/#/c"], "", ["b/#/c", "# must be alone"]),
        (["--turn-credit", "ask"], "", ["--turn-credit", "ask", "off", "accept", "request"]),
        (["--resolve-answer", "yes"], "", ["--resolve-answer", "yes", "ok", "accepted"]),
        (["--max-depth", "0"], "", ["--max-depth", "0"]),
        (["--sturdy-key", "00"], "", ["--sturdy-key", "--sturdy-key-file"]),
        ([], "[relay]\nsturdy_key = '00'", ["sturdy_key", "FILE", "sturdy-key-file"]),
        (["somewhere"], "", ["no positional arguments; did you mean --listen somewhere?"]),
        ([], "[relay]\nlimit_itms = 5", ["limit_itms", "FILE", "limit-items"]),
        ([], "[relay]\nlimit_items = 3.5", ["limit_items", "FILE", "3.5"]),
        ([], "[relay]\nlimit_items = [1, 2]", ["limit_items", "FILE"]),
        ([], "[relay]\nlimit_items = {high = 2}", ["limit_items", "high", "FILE"]),
        ([], "[relay]\nlimit_bytes = '8MB'", ["limit_bytes", "FILE", "8MB"]),
        ([], "[relay]\nstuck = 'panic'", ["stuck", "FILE", "panic"]),
        ([], "[rely]\nlimit_items = 5", ["rely", "FILE", "relay"]),
        ([], "limit_items = 5", ["limit_items", "FILE", "[relay]"]),
        ([], "relay = 5", ["relay", "FILE"]),
        ([], "[relay\n", ["FILE", "line 1"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    options: list[str],
    toml: str,
    said: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "mistaken.toml"
    file.write_text(toml, "utf-8")
    assert run(["relay", "--config", str(file), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("clearfunds relay: ")
    for word in said:
        assert word.replace("FILE", str(file)) in captured.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["pub", "-t", "x", "a b"],
            "pub takes no positional arguments; did you mean --message 'a b'?",
        ),
        (
            ["perf", "mqtt://u:secret@h"],
            "perf takes no positional arguments; did you mean --url URL?",
        ),
        (["mint", "secret"], "mint takes no positional arguments"),
        (["top", "x", "secret"], "top takes at most 1 positional argument"),
        (["passwd", "x", "y", "secret"], "passwd takes at most 2 positional arguments"),
        (["store", "dump", "x", "secret"], "store dump takes at most 1 positional argument"),
    ],
)
def test_a_positional_argument_too_many_is_told_in_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    name = f"clearfunds {argv[0]}"
    assert captured.err == f"{name}: {said} (see {name} --help)\n"


def test_a_mistake_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLEARFUNDS_RELAY_LIMIT_ITEMS", "many")
    assert run(["relay"]) == 2
    said = capsys.readouterr().err
    assert "CLEARFUNDS_RELAY_LIMIT_ITEMS" in said
    assert "many" in said


def test_a_variable_that_is_no_option_is_told_and_ignored(
    settle: Settle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert settle(env={"CLEARFUNDS_RELAY_LIMIT_ITMES": "5"}) == DEFAULTS
    said = capsys.readouterr().err
    assert "CLEARFUNDS_RELAY_LIMIT_ITMES" in said
    assert "did you mean CLEARFUNDS_RELAY_LIMIT_ITEMS?" in said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["rely"], ["rely", "relay"]),
        (["--limit-items", "5"], ["limit-items"]),
        (["relay", "--config", "nowhere.toml"], ["nowhere.toml", "No such file"]),
    ],
)
def test_a_mistake_before_any_option(
    argv: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for word in said:
        assert word in captured.err


def test_help_has_every_option_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["relay", "--help"]) == 0
    text = capsys.readouterr().out
    groups = ("Listeners", "TLS", "Pages", "Debt", "Patience", "Peers", "Syndicate")
    positions = [text.index(f" {group} ─") for group in groups]
    assert positions == sorted(positions)
    for field in (*attrs.fields(RelaySettings), *attrs.fields(Tls), *attrs.fields(TokenOptions)):
        if field.name in ("tls", "tokens"):
            continue
        assert f"--{option(field.name).replace('_', '-')} " in text


def test_the_list_of_commands_says_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in ("relay", "cluster", "pub", "sub", "top", "trace", "mint", "store", "demo"):
        assert re.search(rf"^. {name} +[A-Z][a-z]+ ", listed, re.MULTILINE), name
    assert run(["mint", "--help"]) == 0
    assert "Print a sturdyref" in capsys.readouterr().out
