"""What the server of forks has done once, before it forks: see `tests.forks`.

Without it each fork parses the types of a relay's options anew, and its collector looks at, and so
copies, all objects that it was born with: half of the CPU time of a relay's start (measured).
"""

import gc

from clearfunds._cli import _cluster as _cluster
from clearfunds._cli import _perf as _perf
from clearfunds._cli import _pub as _pub
from clearfunds._cli import _relay as _relay
from clearfunds._cli import _sub as _sub
from clearfunds._cli import _top as _top
from clearfunds._cli import _trace as _trace
from clearfunds._cli._app import command_line

command_line()["relay"].assemble_argument_collection()
gc.collect()
gc.freeze()
