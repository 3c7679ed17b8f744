"""Queries of small tables are interpreted."""

from tests.pipeline.interpreted import interpreted

__all__ = ["interpreted"]
