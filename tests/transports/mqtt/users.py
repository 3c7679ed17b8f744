"""Lines of password files, made without mosquitto_passwd."""

from __future__ import annotations

import hashlib
from base64 import b64encode

SALT = bytes(range(12))


def user_line(user: str, password: bytes, iterations: int = 101, salt: bytes = SALT) -> str:
    """Write a user's line; with 0 iterations in the old way."""
    if iterations:
        made = hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
        return f"{user}:$7${iterations}${coded(salt)}${coded(made)}"
    return f"{user}:$6${coded(salt)}${coded(hashlib.sha512(password + salt).digest())}"


def coded(data: bytes) -> str:
    """Write bytes in base64."""
    return b64encode(data).decode("ascii")
