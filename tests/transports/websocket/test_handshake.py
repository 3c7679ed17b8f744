"""The opening handshake: what is accepted, what is refused and with which answer."""

from __future__ import annotations

import socket

import h11
import pytest

from clearfunds.transports.websocket import DEFAULT_MAX_HANDSHAKE_SIZE, WebSocket
from tests.transports.websocket.frames import ACCEPT, BINARY, KEY, bytewise, feed, frame, request


def answer_to(
    data: bytes, max_handshake_size: int = DEFAULT_MAX_HANDSHAKE_SIZE
) -> tuple[WebSocket, h11.Response, str]:
    """Return who refused the request, and its answer as an HTTP client reads it."""
    ws = WebSocket(max_message_size=100, max_handshake_size=max_handshake_size)
    assert ws.receive_data(data) == []
    assert not ws.established
    assert ws.fault is not None
    assert ws.outgoing() == b""
    answer = ws.close()
    assert ws.close() == b""
    browser = h11.Connection(h11.CLIENT)
    browser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    browser.receive_data(answer)
    head = browser.next_event()
    assert isinstance(head, h11.Response)
    body = browser.next_event()
    assert isinstance(body, h11.Data)
    assert isinstance(browser.next_event(), h11.EndOfMessage)
    assert browser.their_state is h11.MUST_CLOSE
    return ws, head, body.data.decode()


def header(response: h11.Response, name: bytes) -> list[bytes]:
    return [value for key, value in response.headers if key == name]


def test_the_example_of_the_standard() -> None:
    """[RFC 6455 sections 1.3 and 4.2.2]."""
    ws = WebSocket(max_message_size=100, origins=("http://example.com",))
    example = (
        "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\nOrigin: http://example.com\r\n"
        "Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert ws.receive_data(example.encode()) == []
    assert ws.established
    assert ws.fault is None
    assert ws.outgoing().decode() == (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    )
    assert ws.outgoing() == b""


@pytest.mark.parametrize(
    "data",
    [
        request("GET /any/path?and=query HTTP/1.1"),
        request(Upgrade="WebSocket"),
        request(Upgrade="h2c, websocket"),
        request(Connection="keep-alive, Upgrade"),
        request(Connection="UPGRADE"),
        request(Origin="https://localhost:1", Host="localhost:9001"),
        request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"),
        request(Sec_WebSocket_Protocol="syndicate"),
        request(Content_Length="0"),
        request(Cookie="caf\u00e9"),
        request(User_Agent="x", Sec_WebSocket_Extensions="\u00fcnknown"),
    ],
)
def test_it_is_accepted(data: bytes) -> None:
    ws = WebSocket(max_message_size=100)
    assert ws.receive_data(data) == []
    assert ws.established
    answer = ws.outgoing()
    # What is offered is not taken up [RFC 6455 section 9.1].
    assert b"Extensions" not in answer
    assert b"Protocol:" not in answer


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (request("POST / HTTP/1.1"), 405, "GET"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 426, "only WebSocket clients"),
        (b"GET / HTTP/1.0\r\n\r\n", 426, "only WebSocket clients"),
        (request("GET / HTTP/1.0"), 426, "HTTP/1.1"),
        (request(Upgrade="h2c"), 426, "Upgrade: websocket"),
        (request(Connection="keep-alive"), 400, "Connection: Upgrade"),
        (request(Connection=None), 400, "Connection: Upgrade"),
        (request(Sec_WebSocket_Version="8"), 426, "Sec-WebSocket-Version: 13"),
        (request(Sec_WebSocket_Version=None), 426, "Sec-WebSocket-Version: 13"),
        (request(Sec_WebSocket_Key=None), 400, "Sec-WebSocket-Key"),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400, "16 bytes"),
        (request(Sec_WebSocket_Key="not base64, that is!"), 400, "16 bytes"),
        (request(Sec_WebSocket_Key=KEY.replace("I", "!I")), 400, "16 bytes"),
        (request(Sec_WebSocket_Key="\u00fc" * 12), 400, "16 bytes"),
        (request(sec_websocket_key=KEY), 400, "one Sec-WebSocket-Key"),
        (request(Host=None), 400, "Host"),
        (request(Content_Length="5"), 400, "no body"),
        (request(Transfer_Encoding="chunked"), 400, "no body"),
        (b"HELLO\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "malformed"),
    ],
)
def test_it_is_refused(data: bytes, status: int, says: str) -> None:
    """[RFC 6455 sections 4.2.1 and 4.4], and why is said to the client and to the log."""
    ws, response, body = answer_to(data)
    assert response.status_code == status
    assert says in body
    assert says in str(ws.fault)
    if status == 426:
        assert header(response, b"sec-websocket-version") == [b"13"]
        assert header(response, b"upgrade") == [b"websocket"]
        assert header(response, b"connection") == [b"Upgrade, close"]
    if status == 405:
        assert header(response, b"allow") == [b"GET"]


@pytest.mark.parametrize("first", [b"\x16\x03\x01", b"\xb5\xb5", b"[", b"\x10\x10", b"\r\n", b"\0"])
def test_another_protocol_is_refused_at_its_first_byte(first: bytes) -> None:
    ws, response, _ = answer_to(first[:1])
    assert response.status_code == 400
    assert f"{first[0]:#04x}" in str(ws.fault)


def test_it_may_come_byte_by_byte() -> None:
    whole, pieces = WebSocket(max_message_size=100), WebSocket(max_message_size=100)
    data = request() + frame(BINARY, b"at once")
    assert whole.receive_data(data) == feed(pieces, bytewise(data)) == [b"at once"]
    assert whole.outgoing() == pieces.outgoing()


def test_a_refusal_is_the_same_byte_by_byte() -> None:
    data = request(Upgrade="h2c") + b"and more"
    pieces = WebSocket(max_message_size=100)
    assert feed(pieces, bytewise(data)) == []
    ws, _, _ = answer_to(data)
    assert str(ws.fault) == str(pieces.fault)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_size_of_a_request_is_limited(at_once: bool) -> None:
    size = len(request())
    fits = WebSocket(max_message_size=100, max_handshake_size=size)
    over = WebSocket(max_message_size=100, max_handshake_size=size - 1)
    pieces = [request()] if at_once else bytewise(request())
    assert feed(fits, pieces) == feed(over, pieces) == []
    assert fits.established
    assert not over.established
    assert str(size - 1) in str(over.fault)
    assert over.close().startswith(b"HTTP/1.1 431 ")


def test_what_comes_after_a_request_is_not_part_of_it() -> None:
    after = frame(BINARY, b"one") + frame(BINARY, b"two")
    for limit in range(len(request()), len(request() + after) + 1):
        ws = WebSocket(max_message_size=100, max_handshake_size=limit)
        assert ws.receive_data(request() + after) == [b"one", b"two"]


def test_an_endless_request_is_cut_off() -> None:
    ws = WebSocket(max_message_size=100)
    ws.receive_data(b"GET / HTTP/1.1\r\n")
    sent = 0
    while ws.fault is None:
        ws.receive_data(b"A-Field: and its value\r\n")
        sent += 24
    assert sent <= DEFAULT_MAX_HANDSHAKE_SIZE + 24


def test_nothing_is_taken_after_a_refusal() -> None:
    ws, _, _ = answer_to(request(Upgrade="h2c"))
    fault = ws.fault
    assert ws.receive_data(request()) == []
    assert ws.fault is fault
    assert not ws.established


def test_closing_during_the_handshake_says_nothing() -> None:
    ws = WebSocket(max_message_size=100)
    ws.receive_data(request()[:-1])
    assert ws.close() == b""
    assert ws.receive_data(b"\n") == []
    assert not ws.established
    assert ws.outgoing() == b""


def test_its_repr_says_how_far_it_is() -> None:
    ws = WebSocket(max_message_size=100)
    assert "shaking hands" in repr(ws)
    ws.receive_data(request())
    assert "open" in repr(ws)
    ws.close()
    assert "closed from this side" in repr(ws)
    ws.receive_data(frame(8))
    assert "closed by the peer" in repr(ws)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, None),
        ("mqtt", b"mqtt"),
        ("other , mqtt", b"mqtt"),
        ("MQTT", None),
        ("mqttv3.1", None),
    ],
)
def test_a_subprotocol_is_chosen_if_it_is_offered(
    offered: str | None, chosen: bytes | None
) -> None:
    """[RFC 6455 section 4.2.2]; its name is compared as it stands."""
    ws = WebSocket(max_message_size=100, subprotocol="mqtt")
    ws.receive_data(request(Sec_WebSocket_Protocol=offered))
    assert ws.established
    head = ws.outgoing().split(b"\r\n")
    named = [line for line in head if line.lower().startswith(b"sec-websocket-protocol")]
    assert named == ([] if chosen is None else [b"Sec-WebSocket-Protocol: " + chosen])


@pytest.mark.parametrize("origin", [None, "https://here.example", "HTTPS://Here.example"])
def test_who_comes_from_where_it_may_is_let_in(origin: str | None) -> None:
    ws = WebSocket(max_message_size=100, origins=("https://here.example", "http://localhost:8000"))
    ws.receive_data(request(Origin=origin))
    assert ws.established


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "relay.example"),
        ("http://localhost", "localhost:8083"),
        ("http://LOCALHOST:3000", "localhost:8083"),
        ("https://127.0.0.1", "127.0.0.1:8083"),
        ("http://[::1]:3000", "[::1]:8083"),
        ("http://192.0.2.7", "192.0.2.7"),
        (f"http://{socket.gethostname()}", socket.gethostname()),
    ],
)
def test_pages_of_the_same_host_are_let_in(origin: str | None, host: str) -> None:
    ws = WebSocket(max_message_size=100)
    ws.receive_data(request(Origin=origin, Host=host))
    assert ws.established


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "localhost:8083"),
        ("http://evil.example:8083", "127.0.0.1:8083"),
        ("http://localhost", "127.0.0.1:8083"),
        ("http://localhost.evil.example", "localhost"),
        # The name is the page's own, and leads to an address of ours for now: DNS rebinding.
        ("http://evil.example:8083", "evil.example:8083"),
        ("null", "localhost"),
        ("null", "null"),
        ("file://", "localhost"),
        ("", ""),
        ("http://[::1", "[::1"),
    ],
)
def test_pages_of_another_host_are_refused_by_default(origin: str, host: str) -> None:
    ws = WebSocket(max_message_size=100)
    ws.receive_data(request(Origin=origin, Host=host))
    assert not ws.established
    assert ws.close().startswith(b"HTTP/1.1 403 ")
    assert "--origin" in str(ws.fault)
    anybodys = WebSocket(max_message_size=100, origins=("*",))
    anybodys.receive_data(request(Origin=origin, Host=host))
    assert anybodys.established


@pytest.mark.parametrize(
    "origin", ["https://there.example", "http://here.example", "https://here.example:8443", "null"]
)
def test_pages_of_somebody_else_are_refused(origin: str) -> None:
    """[RFC 6455 section 4.2.2]."""
    ws = WebSocket(max_message_size=100, origins=("https://here.example",))
    ws.receive_data(request(Origin=origin))
    assert not ws.established
    assert ws.close().startswith(b"HTTP/1.1 403 ")
    assert origin in str(ws.fault)
