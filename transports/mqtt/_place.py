"""A client's place among the connections of its user and its tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .._admission import Admission
from .._tenants import NO_USER, Peer

if TYPE_CHECKING:
    from ._server import MqttServer


@attrs.frozen(slots=True)
class Place:
    """What a client is counted as, until `leave`."""

    admission: Admission
    user: str | None
    tenant: str | None

    def leave(self) -> None:
        """Count it no longer; to be called once."""
        self.admission.let_go(self.user, self.tenant)


def take_place(server: MqttServer, peer: Peer, *, proved: bool) -> Place | str:
    """Count a client that is let in; or return why there is no room for it.

    Args:
        server: Where it is let in.
        peer: Whose connection it is.
        proved: Whether its user has been proved: one that is only believed could use up another's.
    """
    user = peer.user if proved and peer.user != NO_USER else None
    tenant = server.tree.of(peer).tenant
    name, most = (None, None) if tenant is None else (tenant.name, tenant.connections)
    why = server.admission.let_in(user, name, most)
    return Place(server.admission, user, name) if why is None else why
