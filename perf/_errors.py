"""What can be wrong with a measurement."""


class PerfError(Exception):
    """A measurement that cannot be made, or was broken off; the message says why."""


class ScenarioError(PerfError, ValueError):
    """A scenario that cannot be what it is said to be."""
