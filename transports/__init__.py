"""How bytes move: listeners, outlets, the relay, and one folder for each wire protocol."""

from ._account_limits import AccountLimit as AccountLimit
from ._account_limits import AccountLimits as AccountLimits
from ._alarms import AlarmSettings as AlarmSettings
from ._alarms import watch_alarms as watch_alarms
from ._beside import Beside as Beside
from ._errors import LocalProtocolError as LocalProtocolError
from ._errors import ProtocolError as ProtocolError
from ._errors import RemoteProtocolError as RemoteProtocolError
from ._errors import TransportError as TransportError
from ._flusher import Flusher as Flusher
from ._flusher import open_flusher as open_flusher
from ._link import Link as Link
from ._listener import Listener as Listener
from ._listener import ListenError as ListenError
from ._listener import ListenURL as ListenURL
from ._listener import ListenURLError as ListenURLError
from ._listener import open_listeners as open_listeners
from ._outlet import Outlet as Outlet
from ._relay import Relay as Relay
from ._relay import RelayAddresses as RelayAddresses
from ._relay import RelayReport as RelayReport
from ._relay import RelaySettings as RelaySettings
from ._relay import parse_address as parse_address
from ._relay import serve_relay as serve_relay
from ._server import Counters as Counters
from ._trace_label import label_of as label_of
