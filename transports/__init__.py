"""How bytes move: listeners, outlets, and one folder for each wire protocol."""

from ._errors import LocalProtocolError as LocalProtocolError
from ._errors import ProtocolError as ProtocolError
from ._errors import RemoteProtocolError as RemoteProtocolError
from ._errors import TransportError as TransportError
