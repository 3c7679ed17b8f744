"""Several relays on this machine: `clearfunds cluster`, and `clearfunds relay --workers`."""

from ._command import cluster as cluster
