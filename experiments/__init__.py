"""Schemes to compare the relay with; not part of the package that is installed."""
