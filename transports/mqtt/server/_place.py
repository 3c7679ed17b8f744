"""A client's place in the connection limits of its user and its tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ....access._admission import Admission
from ....access._tenants import NO_USER, Peer

if TYPE_CHECKING:
    from ..._server import Server


@attrs.frozen(slots=True)
class Place:
    """A client's entry in the counts of connections, until `leave`."""

    admission: Admission
    user: str | None
    tenant: str | None

    def leave(self) -> None:
        """Remove it from the counts; call this once."""
        self.admission.let_go(self.user, self.tenant)


def take_place(server: Server[Any, Any], peer: Peer, *, proved: bool) -> Place | str | None:
    """Count a client that is let in; or return why there is no room for it.

    None: it has neither a user nor a tenant that it would count for.

    Args:
        server: The server that lets it in.
        peer: The peer that has connected.
        proved: Whether its user has authenticated. A client that only claims to be a user could use
            up that user's connections.
    """
    user = peer.user if proved and peer.user != NO_USER else None
    tenant = server.tree.of(peer).tenant
    name = None if tenant is None else tenant.name
    most = None if tenant is None else server.tree.amounts_of(tenant).connections
    why = server.admission.let_in(user, name, most)
    if why is None and (user is not None or name is not None):
        return Place(server.admission, user, name)
    return why
