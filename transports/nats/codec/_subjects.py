"""Subjects: tokens between dots; `*` stands for one token, `>` at the end for all that follow."""

from __future__ import annotations

from ..._errors import LocalProtocolError


def check_subject(subject: str, *, wildcards: bool = False) -> str:
    """Return the subject.

    Args:
        subject: The subject.
        wildcards: Whether it is to subscribe to, and so may have wildcards.

    Raises:
        LocalProtocolError: It is no subject; the message says why.
    """
    why = _trouble(subject, wildcards)
    if why:
        raise LocalProtocolError(f"{subject!r} is no subject: {why}")
    return subject


def _trouble(subject: str, wildcards: bool) -> str:
    if not subject:
        return "it is empty"
    # The server splits lines at blanks; control characters are left out for readers' sake.
    if not subject.isprintable() or " " in subject:
        return "it has a blank or a control character"
    tokens = subject.split(".")
    if "" in tokens:
        return "a token between dots is empty"
    if wildcards:
        return "`>` has to be the last token" if ">" in tokens[:-1] else ""
    if "*" in tokens or ">" in tokens:
        return "wildcards are for subscriptions"
    return ""
