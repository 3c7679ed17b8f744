"""Relays that are one cluster, over NATS: who is there, who wants what, and debt that crosses."""

from ._cluster import Cluster as Cluster
from ._cluster import ClusterSettings as ClusterSettings
from ._collector import ClusterCollector as ClusterCollector
from ._errors import ClusterError as ClusterError
from ._errors import NameTakenError as NameTakenError
from ._forwarding import Forwarding as Forwarding
from ._homes import Homes as Homes
from ._outbox import Outboxes as Outboxes
from ._replicated import open_replicated_shelves as open_replicated_shelves
from ._retained import Retained as Retained
from ._stand_in import StandIns as StandIns
from ._take_over import TakeOver as TakeOver
