"""The Syndicate network protocol: packets, a core without I/O, references and sturdyrefs.

Needs the `preserves` library, which the extra `relay` brings.
"""

from ._connection import NEED_DATA as NEED_DATA
from ._connection import Connection as Connection
from ._connection import Frame as Frame
from ._connection import NeedData as NeedData
from ._connection import State as State
from ._membrane import DEFAULT_MAX_ASSERTIONS as DEFAULT_MAX_ASSERTIONS
from ._membrane import DEFAULT_MAX_REFERENCES as DEFAULT_MAX_REFERENCES
from ._membrane import Membrane as Membrane
from ._membrane import MembraneStatistics as MembraneStatistics
from ._membrane import Pin as Pin
from ._membrane import Standing as Standing
from ._packets import Assert as Assert
from ._packets import Error as Error
from ._packets import Event as Event
from ._packets import Extension as Extension
from ._packets import Message as Message
from ._packets import Nop as Nop
from ._packets import Packet as Packet
from ._packets import Retract as Retract
from ._packets import Sync as Sync
from ._packets import Turn as Turn
from ._packets import TurnEvent as TurnEvent
from ._packets import WireRef as WireRef
from ._packets import decode as decode
from ._packets import encode as encode
from ._preserves import Embedded as Embedded
from ._preserves import Record as Record
from ._preserves import Symbol as Symbol
from ._preserves import Value as Value
from ._scan import DEFAULT_MAX_DEPTH as DEFAULT_MAX_DEPTH
from ._scan import DEFAULT_MAX_PACKET_SIZE as DEFAULT_MAX_PACKET_SIZE
from ._scan import EventParts as EventParts
from ._scan import Scanner as Scanner
from ._scan import event_parts as event_parts
from ._scan_text import DEFAULT_MAX_TEXT_SIZE as DEFAULT_MAX_TEXT_SIZE
from ._sturdy import DEFAULT_MAX_CAVEATS_SIZE as DEFAULT_MAX_CAVEATS_SIZE
from ._sturdy import Alternatives as Alternatives
from ._sturdy import Caveat as Caveat
from ._sturdy import Refusal as Refusal
from ._sturdy import Reject as Reject
from ._sturdy import Rewrite as Rewrite
from ._sturdy import SturdyRef as SturdyRef
from ._sturdy import attenuate_value as attenuate_value
from ._sturdy import attenuated_sturdyref as attenuated_sturdyref
from ._sturdy import compile_caveat as compile_caveat
from ._sturdy import compile_caveats as compile_caveats
from ._sturdy import is_genuine as is_genuine
from ._sturdy import mint as mint
from ._sturdy import parse_sturdyref as parse_sturdyref
from ._sturdy import read_sturdyref as read_sturdyref
from ._sturdy import sturdyref_value as sturdyref_value
