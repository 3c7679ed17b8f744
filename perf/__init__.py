"""A load generator for MQTT servers: it measures latency, losses, and stalls of publishers."""

from ._errors import PerfError as PerfError
from ._errors import ScenarioError as ScenarioError
from ._exposition import Exposition as Exposition
from ._exposition import exposed as exposed
from ._file import read_scenarios as read_scenarios
from ._file import scenarios_of as scenarios_of
from ._files import check_files as check_files
from ._files import write as write
from ._latency import Latencies as Latencies
from ._latency import Marks as Marks
from ._latency import check_histogram as check_histogram
from ._profile import Profile as Profile
from ._profile import Step as Step
from ._result import PublisherResult as PublisherResult
from ._result import Result as Result
from ._result import Sample as Sample
from ._result import SubscriberResult as SubscriberResult
from ._run import measure as measure
from ._scenario import Scenario as Scenario
from ._scenario import Stall as Stall
from ._scenario import parse_stalls as parse_stalls
from ._sizes import Sizes as Sizes
from ._summary import HEADING as HEADING
from ._summary import sample_line as sample_line
from ._summary import summary as summary
from ._tls import check_tls as check_tls
