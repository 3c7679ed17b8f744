"""How a client proves to be its user [docs.nats.io, CONNECT; NATS ADR-14]."""

from __future__ import annotations

import base64
import importlib
import re
from pathlib import Path
from typing import Any, Final

import attrs

from ._errors import LoginError

_BLOCK: Final = re.compile(
    r"-{3,}BEGIN (?P<name>[A-Z ]+)-{3,}\s*(?P<text>\S+)\s*-{3,}END (?P=name)-{3,}"
)
"""A block of a credentials file."""


@attrs.frozen(kw_only=True)
class Login:
    """A user's name and password, a token, or a key, with or without a JSON Web Token.

    Attributes:
        user, password: Name and password.
        token: A token, in their place.
        seed: The seed of an Ed25519 key, as `nk -gen user` writes it (SU...).
        jwt: The JSON Web Token that says who has that key.
    """

    user: str = ""
    password: str = attrs.field(default="", repr=False)
    token: str = attrs.field(default="", repr=False)
    seed: str = attrs.field(default="", repr=False)
    jwt: str = attrs.field(default="", repr=False)

    @classmethod
    def from_credentials(cls, path: str | Path) -> Login:
        """Read a credentials file, which has a JSON Web Token and a seed.

        Raises:
            LoginError: The file cannot be read, or lacks one of the two.
        """
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise LoginError(f"cannot read {path}: {error}") from error
        found = {match["name"]: match["text"] for match in _BLOCK.finditer(text)}
        jwt, seed = found.get("NATS USER JWT"), found.get("USER NKEY SEED")
        if jwt is None or seed is None:
            lacking = "NATS USER JWT" if jwt is None else "USER NKEY SEED"
            raise LoginError(f"{path} has to have a block of {lacking}")
        return cls(jwt=jwt, seed=seed)

    def fields(self, nonce: str) -> dict[str, Any]:
        """Return the parts of CONNECT.

        Args:
            nonce: The text of the server's INFO that a key has to sign.

        Raises:
            LoginError: The seed is damaged; or the package for keys is not installed.
        """
        fields = {"user": self.user, "pass": self.password, "auth_token": self.token}
        if self.seed:
            public, signature = _sign(self.seed, nonce)
            fields |= {"sig": signature, "jwt": self.jwt, "nkey": "" if self.jwt else public}
        return {name: value for name, value in fields.items() if value}


def _sign(seed: str, nonce: str) -> tuple[str, str]:
    """Return the public key of a seed, and the signature of a nonce."""
    try:
        nkeys: Any = importlib.import_module("nkeys")  # it has no types
    except ImportError as error:
        raise LoginError(
            "logins with keys need an extra: pip install 'clearfunds[nats]'"
        ) from error
    try:
        pair = nkeys.from_seed(seed.encode())
        public = pair.public_key.decode()
        signature = pair.sign(nonce.encode())
    except Exception as error:  # The package lets those of base64 and its key library through.
        raise LoginError(f"the seed of the key is damaged: {error!r}") from error
    return public, base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
