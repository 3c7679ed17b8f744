"""Traces as OpenTelemetry spans: an event's packet, its loans, and what they caused.

Needs `opentelemetry-api`, of the extra `otel`; nothing else in the package imports this folder
unless it is asked to. It touches no global state: who wants spans gives the tracer that makes them.
"""

from .._otel_export import OtelError as OtelError
from .._otel_export import open_provider as open_provider
from ._sampling import sample_traces as sample_traces
from ._spans import record_trace as record_trace
