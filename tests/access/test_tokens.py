"""JSON Web Tokens: keys, what is taken for a token, and what of it is believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access import TokenKeyError, Tokens
from clearfunds.access._tokens import Token, TokenError
from tests.transports.certificates import papers_in

jwt: Any = pytest.importorskip("jwt", reason="PyJWT is not installed")
serialization: Any = pytest.importorskip("cryptography.hazmat.primitives.serialization")
ec: Any = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
rsa: Any = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
ed25519: Any = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_000_000.0
CLAIMS = {"sub": "anna", "exp": NOW + 60}
TOKENS = Tokens(SECRET)


def token(claims: dict[str, Any] = CLAIMS, key: Any = SECRET, algorithm: str = "HS256") -> bytes:
    made: str = jwt.encode(claims, key, algorithm=algorithm)
    return made.encode()


def pem(key: Any) -> bytes:
    public: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return public


def private_pem(key: Any) -> bytes:
    private: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private


EDWARDS = ed25519.Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2048)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (EDWARDS, "EdDSA"),
        (RSA, "RS256"),
        (RSA, "PS512"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512"),
    ],
)
def test_tokens_that_are_signed_with_the_key_are_good(key: Any, algorithm: str) -> None:
    tokens = Tokens(pem(key))
    assert tokens.is_public
    made = token(CLAIMS, key, algorithm)
    assert Tokens.is_one(made)
    assert tokens.read(made, NOW) == Token("anna", NOW + 60)
    if key is EDWARDS:
        other = ed25519.Ed25519PrivateKey.generate()
        with pytest.raises(TokenError, match="Signature verification failed"):
            tokens.read(token(CLAIMS, other, algorithm), NOW)


def test_a_secret_may_be_shared(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    tokens = Tokens.from_file(file)
    assert not tokens.is_public
    assert tokens.read(token(), NOW).user == "anna"
    file.write_bytes(SECRET[::-1])
    tokens.reload()
    with pytest.raises(TokenError, match="Signature"):
        tokens.read(token(), NOW)
    file.write_bytes(b"short")
    with pytest.raises(TokenKeyError, match="32 bytes at least, not 5"):
        tokens.reload()
    assert tokens.read(token(key=SECRET[::-1]), NOW).user == "anna"
    assert SECRET.decode() not in repr(tokens)


def test_the_key_of_a_certificate_will_do(tmp_path: Path) -> None:
    issued = papers_in(tmp_path).for_server()
    assert Tokens.from_file(str(issued.chain)).is_public


@pytest.mark.parametrize(
    ("claims", "error"),
    [
        ({"sub": "anna"}, "exp"),
        ({"exp": NOW + 1}, "sub"),
        ({"sub": "anna", "exp": NOW}, "has expired"),
        ({"sub": "anna", "exp": NOW - 1}, "has expired"),
        ({"sub": "anna", "exp": "x"}, "could not convert"),
        ({"sub": "anna", "exp": float("inf")}, "."),
        ({"sub": "anna", "exp": float("nan")}, "."),
        ({"sub": "", "exp": NOW + 1}, "is not a valid user name"),
        ({"sub": "-", "exp": NOW + 1}, "is not a valid user name"),
        ({"sub": "a\nb", "exp": NOW + 1}, "is not a valid user name"),
        ({**CLAIMS, "nbf": 1e12}, "not yet valid"),
    ],
)
def test_claims_that_are_not_good(claims: dict[str, Any], error: str) -> None:
    with pytest.raises(TokenError, match=error):
        TOKENS.read(token(claims), NOW)


def test_whom_a_token_is_for() -> None:
    tokens = Tokens(SECRET, "relay")
    assert tokens.read(token({**CLAIMS, "aud": ["relay", "other"]}), NOW).user == "anna"
    for claims in (CLAIMS, {**CLAIMS, "aud": "other"}):
        with pytest.raises(TokenError, match=r"[Aa]ud"):
            tokens.read(token(claims), NOW)
    assert TOKENS.read(token({**CLAIMS, "aud": "other"}), NOW).user == "anna"


def test_a_token_does_not_say_how_it_is_checked() -> None:
    public = Tokens(pem(RSA))
    for made in (token(CLAIMS, None, "none"), token(CLAIMS, SECRET, "HS256")):
        with pytest.raises(TokenError):
            public.read(made, NOW)
    with pytest.raises(TokenError):
        TOKENS.read(token(CLAIMS, None, "none"), NOW)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (private_pem(EDWARDS), "that is a private key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "is no public key"),
        (pem(ec.generate_private_key(ec.SECP256K1())), "P-256, P-384 or P-521"),
        (b"", "32 bytes at least, not 0"),
    ],
)
def test_keys_that_are_none(content: bytes, error: str) -> None:
    with pytest.raises(TokenKeyError, match=error):
        Tokens(content)


deep = st.integers(1, 20_000).map(lambda depth: b"[" * depth)
parts = st.one_of(st.binary(max_size=50), deep)


@given(st.lists(parts, min_size=3, max_size=3))
def test_whatever_comes_is_read_or_refused(pieces: list[bytes]) -> None:
    from base64 import urlsafe_b64encode

    made = b".".join(urlsafe_b64encode(piece).rstrip(b"=") for piece in pieces)
    with pytest.raises(TokenError):
        TOKENS.read(made, NOW)


@pytest.mark.parametrize("password", [b"", b"secret", b"a.b", b"a..c", b"a.b.c.d", b"\xff.a.a"])
def test_other_passwords_are_not_taken_for_tokens(password: bytes) -> None:
    assert not Tokens.is_one(password)
