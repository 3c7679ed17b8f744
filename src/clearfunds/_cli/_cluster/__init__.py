"""`clearfunds cluster`: a cluster of relays on this machine, to try it."""

from ._command import cluster as cluster
