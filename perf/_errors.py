"""Errors of a measurement."""


class PerfError(Exception):
    """A measurement that cannot be made, or was broken off; the message has the reason."""


class ScenarioError(PerfError, ValueError):
    """A scenario with an invalid value or combination."""
