"""Transports: listeners, outlets, and one folder for each wire protocol."""

from ..access._publication_policies import OverLimitWord as OverLimitWord
from ..access._publication_policies import PublicationPolicy as PublicationPolicy
from ..access._subscription_policies import ProfileWord as ProfileWord
from ..access._subscription_policies import StuckWord as StuckWord
from ..access._subscription_policies import SubscriptionPolicy as SubscriptionPolicy
from ..access._topic_accounts import TopicAccount as TopicAccount
from ..sockets import TransportError as TransportError
from ._errors import LocalProtocolError as LocalProtocolError
from ._errors import ProtocolError as ProtocolError
from ._errors import RemoteProtocolError as RemoteProtocolError
from ._flusher import Flusher as Flusher
from ._flusher import open_flusher as open_flusher
from ._link import Link as Link
from ._listener import Listener as Listener
from ._listener import ListenError as ListenError
from ._listener import ListenURL as ListenURL
from ._listener import ListenURLError as ListenURLError
from ._listener import open_listeners as open_listeners
from ._outlet import Outlet as Outlet
from ._server import Counters as Counters
from ._settings import ServerSettings as ServerSettings
from ._sizes import parse_size as parse_size
from ._trace_label import label_of as label_of
