"""The relay: its settings, its alarms, and the program that `clearfunds relay` runs."""

from ._adjusting import Adjusted as Adjusted
from ._adjusting import AdjustError as AdjustError
from ._adjusting import Adjusting as Adjusting
from ._alarms import AlarmSettings as AlarmSettings
from ._alarms import watch_alarms as watch_alarms
from ._companion import Companion as Companion
from ._pages import parse_address as parse_address
from ._parts import Parts as Parts
from ._parts import PartsMaker as PartsMaker
from ._relay import Relay as Relay
from ._relay import RelayAddresses as RelayAddresses
from ._relay import RelayReport as RelayReport
from ._relay import serve_relay as serve_relay
from ._settings import RelaySettings as RelaySettings
