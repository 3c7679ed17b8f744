"""Permissions of a relay's clients to publish and read, from its settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..access._tenants import TenantRules
from ..access.acl import AclDefault, Authority
from ..transports._listener import ListenURL, ListenURLError
from ._throttle_notices import topic_of

if TYPE_CHECKING:
    from ._settings import RelaySettings

logger = logging.getLogger("clearfunds.relay")

_SAYS: Final = {
    "deny": "every topic that no rule of the access control list allows is denied",
    "allow": "every topic that no rule of the access control list denies is allowed",
    "tenant": "topics of other tenants are denied",
}
_OPEN: Final = (
    "every user may publish to and read every topic: there is no access control list; give one "
    "(--acl FILE), or say that it is meant so (--acl-default allow)"
)
_BELIEVED: Final = (
    "there is an access control list, and whatever user a client names is believed: give "
    "--passwords FILE, or --tls-client-ca FILE"
)


_ANYBODY: Final = (
    "anybody who reaches %s may publish and read: clients need not say who they are. Give "
    "--passwords FILE, --jwt-key FILE or --tls-client-ca FILE, or listen on 127.0.0.1"
)


def authority_of(settings: RelaySettings, tenants: TenantRules) -> Authority:
    """Return the authority of a relay with these settings."""
    users = settings.has_users
    default: AclDefault | None = settings.acl_default
    if default is None and settings.acl is None and not users:
        default = "allow"
    own_notices = topic_of if users or settings.acl is not None else None
    return Authority(settings.acl, default, tenants, own_notices)


def say_who_is_let_in(settings: RelaySettings, urls: Sequence[ListenURL]) -> None:
    """Warn of listeners that other machines reach, and where nobody has to log in."""
    public = [str(url) for url in urls if url.is_public and not url.gatekeeper]
    if public and not settings.has_users:
        extra = {"event": "open_to_anybody", "urls": tuple(public)}
        logger.warning(_ANYBODY, ", ".join(public), extra=extra)


def check_acl(settings: RelaySettings, urls: Sequence[ListenURL]) -> None:
    """Raise ListenURLError for rules that cannot be enforced, before anything is open."""
    default = settings.acl_default
    if default == "deny" and settings.acl is None:
        msg = "--acl-default deny without a list refuses every topic: give --acl FILE"
        raise ListenURLError(msg)
    if default == "tenant" and not any(tenant.topic for tenant in settings.tenant):
        msg = "--acl-default tenant needs a tenant with topics: give --tenant NAME,topic=FILTER"
        raise ListenURLError(msg)
    if settings.acl is None:
        return
    for url in urls:
        if url.protocol == "syndicate" and not url.gatekeeper and not url.path:
            msg = (
                f"cannot listen on {str(url)!r} with an access control list: every client "
                "of this listener reads and publishes everything; add ?gatekeeper, so that "
                "sturdyrefs carry the rights, or use a Unix socket"
            )
            raise ListenURLError(msg)


def say_what_is_allowed(settings: RelaySettings, authority: Authority) -> None:
    """Log the default for topics without a rule; and warn of rules that may not be meant."""
    users = settings.has_users
    fields = {"event": "authorisation", "default": authority.default}
    if settings.acl is not None and not users:
        logger.warning(_BELIEVED, extra=fields)
    if settings.acl is not None or authority.default != "allow":
        logger.info(_SAYS[authority.default], extra=fields)
    elif users and settings.acl_default is None:
        logger.warning(_OPEN, extra=fields)
