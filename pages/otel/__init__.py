"""Traces as OpenTelemetry spans: an event's packet, its loans, and everything they caused.

Needs `opentelemetry-api`, of the extra `otel`; nothing else in the package imports this folder
unless spans are wanted. It touches no global state: the caller gives the tracer.
"""

from ...transports._otel_export import OtelError as OtelError
from ...transports._otel_export import open_provider as open_provider
from ._sampling import sample_traces as sample_traces
from ._spans import record_trace as record_trace
