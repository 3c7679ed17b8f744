"""Authentication by JSON Web Tokens (RFC 7519), which MQTT clients send as their passwords.

A token must name the client's user (`sub`) and its expiry (`exp`). Only the owner of the signing
key can make tokens; the relay checks them with the public key, or with a shared secret. The
accepted algorithms follow from the key, never from the token.

PyJWT decodes and checks the tokens.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

from ._tenants import NO_USER

MIN_SECRET_BYTES: Final = 32
"""Least size of a shared secret: that of a SHA-256 hash [RFC 7518 section 3.2]."""

_TOKEN: Final = re.compile(rb"[\w-]+\.[\w-]+\.[\w-]*")
"""The form of a token (RFC 7515, section 3.1); other passwords are not taken for tokens."""

_SECRET: Final = ("HS256", "HS384", "HS512")
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class TokenKeyError(ValueError):
    """A key cannot be used; the message has the reason and a remedy, but no secret."""


class TokenError(ValueError):
    """A token is not valid; the message has the reason."""


@attrs.frozen(slots=True)
class Token:
    """The claims of a valid token."""

    user: str
    expires: float
    """Seconds of the wall clock."""


class Tokens:
    """Checks tokens with a key.

    Made by `from_file`, or from a key.

    Args:
        key: A public key, or a certificate with one, in PEM; or else a shared secret, of at least
            `MIN_SECRET_BYTES`, without the end of line.
        audience: The audience (`aud`) that tokens must have; None: any or none.

    Raises:
        TokenKeyError: The key cannot be used.
        ModuleNotFoundError: PyJWT or cryptography is not installed.
    """

    __slots__ = ("_algorithms", "_audience", "_file", "_key")

    def __init__(self, key: bytes, audience: str | None = None, file: Path | None = None) -> None:
        self._file = file
        self._audience = audience
        self._key, self._algorithms = _read_key(key)

    def __repr__(self) -> str:
        return f"<Tokens: {', '.join(self._algorithms)}>"

    @property
    def is_public(self) -> bool:
        """Whether the key is public."""
        return not isinstance(self._key, bytes)

    @classmethod
    def from_file(cls, file: Path | str, audience: str | None = None) -> Tokens:
        """Read the key in a file.

        Raises:
            OSError: The file cannot be read.
            TokenKeyError: The key in it cannot be used.
            ModuleNotFoundError: As above.
        """
        file = Path(file)
        return cls(_content(file), audience, file)

    def reload(self) -> None:
        """Read the file again, if the key comes from one. Connected clients stay connected.

        Raises:
            OSError: The file cannot be read; the old key stays.
            TokenKeyError: The key in it cannot be used; the old key stays.
        """
        if self._file is not None:
            self._key, self._algorithms = _read_key(_content(self._file))

    @staticmethod
    def is_one(password: bytes) -> bool:
        """Whether a password looks like a token."""
        return _TOKEN.fullmatch(password) is not None

    def read(self, password: bytes, now: float) -> Token:
        """Return the claims of a token, at `now` on the wall clock.

        Raises:
            TokenError: It is not signed with the key, has expired, or names no user.
        """
        import jwt

        try:
            claims = jwt.decode(
                password,
                self._key,
                algorithms=self._algorithms,
                audience=self._audience,
                options={
                    "require": ["exp", "sub"],
                    "verify_aud": self._audience is not None,
                    # Clocks differ; `exp` is checked below, by the clock that also ends sessions.
                    "verify_iat": False,
                    "verify_exp": False,
                },
            )
            user, expires = str(claims["sub"]), float(claims["exp"])
        # The library gets the peer's input, and may raise anything.
        except Exception as error:
            raise TokenError(f"{type(error).__name__}: {error}"[:_SHOWN]) from error
        if not math.isfinite(expires) or expires <= now:
            raise TokenError("it has expired")
        if not user or not user.isprintable() or user == NO_USER:
            raise TokenError("its user (sub) is not a valid user name")
        return Token(user, expires)


_SHOWN: Final = 200
"""Longest error about a token in the log, in characters."""


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    # A secret may have any bytes, but editors add an end of line.
    return content if b"-----BEGIN" in content else content.removesuffix(b"\n")


def _read_key(content: bytes) -> tuple[Any, list[str]]:
    """Return a key, and its algorithms."""
    import_module("jwt")  # raises at once if it is not installed
    if b"-----BEGIN" not in content:
        if len(content) < MIN_SECRET_BYTES:
            msg = (
                f"a shared secret has {MIN_SECRET_BYTES} bytes at least, not {len(content)}; "
                "`openssl rand -hex 32` makes one. Or give a public key, in PEM"
            )
            raise TokenKeyError(msg)
        return content, list(_SECRET)
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    if b"PRIVATE KEY-----" in content:
        msg = "that is a private key: give the public one (openssl pkey -in KEY -pubout)"
        raise TokenKeyError(msg)
    try:
        key: object
        if b"-----BEGIN CERTIFICATE" in content:
            key = load_pem_x509_certificate(content).public_key()
        else:
            key = load_pem_public_key(content)
    except Exception as error:
        raise TokenKeyError(f"the PEM in it is no public key ({error})") from error
    if isinstance(key, rsa.RSAPublicKey):
        return key, list(_RSA)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key, ["EdDSA"]
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return key, [_CURVES[key.curve.name]]
    raise TokenKeyError("a key is of RSA, of Ed25519, or of the curve P-256, P-384 or P-521")
