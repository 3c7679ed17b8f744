"""What the server of forks has done once, before it forks: see `tests.forks`.

Without it each fork reads the types of a relay's options anew, and its collector looks at, and so
copies, all objects that it was born with: half of the CPU time of a relay's start (measured).
"""

import gc
from importlib import import_module

from clearfunds._cli._app import command_line

for name in ("relay", "pub", "sub", "top", "trace", "perf", "cluster"):
    import_module(f"clearfunds._cli._{name}")
command_line()["relay"].assemble_argument_collection()
gc.collect()
gc.freeze()
