"""Tracing: one event and everything that it causes."""
