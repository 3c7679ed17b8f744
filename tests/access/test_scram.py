"""SCRAM-SHA-256: keys in the file of passwords, and what a client may say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access import PasswordFileError, Passwords
from clearfunds.access._scram import (
    METHOD,
    AuthenticationFailedError,
    ScramExchange,
    ScramKeys,
)
from tests.transports.mqtt.users import user_line

scramp: Any = pytest.importorskip("scramp", reason="scramp is not installed")

KEYS = ScramKeys.of("pencil")
FILE = f"{KEYS.line('anna')}\n{user_line('bert', b'pencil')}\n"


def prove(passwords: Passwords, user: str, password: str) -> str:
    """Do an exchange; return who the server says that the client is."""
    client = scramp.ScramClient([METHOD], user, password)
    server = ScramExchange(passwords.scram_keys)
    client.set_server_first(server.begin(client.get_client_first().encode()).decode())
    client.set_server_final(server.finish(client.get_client_final().encode()).decode())
    return server.user


def test_both_sides_prove_what_they_know() -> None:
    assert prove(Passwords.from_text(FILE), "anna", "pencil") == "anna"


@pytest.mark.parametrize(
    ("user", "password"), [("anna", "pen"), ("bert", "pencil"), ("nobody", "pencil")]
)
def test_who_does_not_know_it_is_refused(user: str, password: str) -> None:
    with pytest.raises(AuthenticationFailedError, match="keys don't match"):
        prove(Passwords.from_text(FILE), user, password)


def test_the_same_line_serves_for_a_password() -> None:
    carl = ScramKeys.of("pä\xa0\xadss").line("carl")
    passwords = Passwords.from_text(f"{FILE}{carl}\n")
    assert not passwords.quick
    assert passwords.check("anna", b"pencil")
    assert passwords.check("bert", b"pencil")
    assert not passwords.check("anna", b"pencils")
    assert not passwords.check("dora", b"pencil")
    # As SCRAM has it: spaces are alike, and a hyphen that is not seen is none.
    assert passwords.check("carl", "pä\xa0\xadss".encode())
    assert passwords.check("carl", "pä ss".encode())
    assert not passwords.check("carl", b"p\xff")


def test_keys_of_nobody_look_like_others() -> None:
    passwords = Passwords.from_text(FILE)
    one, again, other = (passwords.scram_keys(user) for user in ("x", "x", "y"))
    assert one == again
    assert one.salt != other.salt
    assert len(one.salt) == len(other.salt) == len(KEYS.salt)
    assert one.iterations == KEYS.iterations
    assert not one.is_of(b"")


@pytest.mark.parametrize(
    ("secret", "error"),
    [
        ("SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0$AA==", "parts of the keys are missing"),
        ("SCRAM-SHA-256$100:c2FsdHNhbHRzYWx0$AA==:AA==", "has to be 4096 at least"),
        ("SCRAM-SHA-256$4096:c2FsdA==$AA==:AA==", "the salt has 4 bytes, less than 12"),
        ("SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0$AA==:AA==", "a key has 1 bytes instead of 32"),
        ("SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0$!:AA==", "the key is not in base64"),
        ("SCRAM-SHA-256$x:c2FsdHNhbHRzYWx0$AA==:AA==", "the number of iterations has to be from"),
    ],
)
def test_keys_that_are_none_are_refused(secret: str, error: str) -> None:
    with pytest.raises(PasswordFileError, match=error):
        Passwords.from_text(f"anna:{secret}")


def test_what_is_no_password_has_no_keys() -> None:
    for password, iterations in (("a\0", 4096), ("good", 100)):
        with pytest.raises(ValueError, match=r"prohibited|must not be|forbidden"):
            ScramKeys.of(password, iterations)


@given(
    st.binary(max_size=100) | st.text(st.sampled_from("nyp=,ra1\x00ä"), max_size=30).map(str.encode)
)
def test_whatever_comes_first_is_answered_or_refused(data: bytes) -> None:
    server = ScramExchange(Passwords.from_text(FILE).scram_keys)
    try:
        server.begin(data)
    except AuthenticationFailedError:
        return
    assert server.user


@given(
    st.binary(max_size=100)
    | st.text(st.sampled_from("c=biws,rp1\x00"), max_size=60).map(str.encode)
)
def test_whatever_comes_last_proves_nothing(data: bytes) -> None:
    server = ScramExchange(Passwords.from_text(FILE).scram_keys)
    server.begin(b"n,,n=anna,r=abc")
    with pytest.raises(AuthenticationFailedError):
        server.finish(data)
