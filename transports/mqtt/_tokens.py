"""Users by JSON Web Tokens (RFC 7519), which MQTT clients give as their passwords.

A token says who a client is (`sub`) and until when (`exp`); it has to have both. Whoever has the
key that it is signed with may make one, so the relay has to know the public key, or share a secret.
The algorithms that are taken follow from the key, never from the token.

Tokens are read and checked by PyJWT.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

from .._tenants import NO_USER

MIN_SECRET_BYTES: Final = 32
"""Of a shared secret: as many as SHA-256 gives [RFC 7518 section 3.2]."""

_TOKEN: Final = re.compile(rb"[\w-]+\.[\w-]+\.[\w-]*")
"""How a token looks (RFC 7515, section 3.1): no other password is taken for one."""

_SECRET: Final = ("HS256", "HS384", "HS512")
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class TokenKeyError(ValueError):
    """A key cannot be used; says why and what to do, but no secret."""


class TokenError(ValueError):
    """A token is not good; says why."""


@attrs.frozen(slots=True)
class Token:
    """What a token that is good says."""

    user: str
    expires: float
    """Seconds of the wall clock."""


class Tokens:
    """What tokens are checked with.

    Made by `from_file`, or of a key.

    Args:
        key: A public key, or a certificate's, in PEM; or else a secret that is shared, of
            `MIN_SECRET_BYTES` at least, without the line's end.
        audience: Whom tokens have to be for (`aud`); None: whomever they are for.

    Raises:
        TokenKeyError: It is no key.
        ModuleNotFoundError: There is no PyJWT, or no cryptography.
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
        """Whether anybody may know the key."""
        return not isinstance(self._key, bytes)

    @classmethod
    def from_file(cls, file: Path | str, audience: str | None = None) -> Tokens:
        """Read the key in a file.

        Raises:
            OSError: It cannot be read.
            TokenKeyError: It has something else in it.
            ModuleNotFoundError: As above.
        """
        file = Path(file)
        return cls(_content(file), audience, file)

    def reload(self) -> None:
        """Read the file again, if it comes from one. Who is connected stays.

        Raises:
            OSError: It cannot be read; the key is that of before.
            TokenKeyError: It has something else in it; likewise.
        """
        if self._file is not None:
            self._key, self._algorithms = _read_key(_content(self._file))

    @staticmethod
    def is_one(password: bytes) -> bool:
        """Whether a password looks like a token."""
        return _TOKEN.fullmatch(password) is not None

    def read(self, password: bytes, now: float) -> Token:
        """Return what a token says, at `now` on the wall clock.

        Raises:
            TokenError: It is not signed with the key, has expired, or does not say who it is of.
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
                    # Clocks differ; `exp` is looked at below, by the same clock as it ends by.
                    "verify_iat": False,
                    "verify_exp": False,
                },
            )
            user, expires = str(claims["sub"]), float(claims["exp"])
        # What a peer sends is handed to somebody else's code: it may raise anything.
        except Exception as error:
            raise TokenError(f"{type(error).__name__}: {error}"[:_SHOWN]) from error
        if not math.isfinite(expires) or expires <= now:
            raise TokenError("it has expired")
        if not user or not user.isprintable() or user == NO_USER:
            raise TokenError("what it calls its user (sub) cannot be the name of one")
        return Token(user, expires)


_SHOWN: Final = 200
"""Characters of what is wrong with a token that are logged."""


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    # A secret may be of any bytes; but editors end what they write with a line's end.
    return content if b"-----BEGIN" in content else content.removesuffix(b"\n")


def _read_key(content: bytes) -> tuple[Any, list[str]]:
    """Return a key, and by which algorithms it signs."""
    import_module("jwt")  # it is said at once if it is not here
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
