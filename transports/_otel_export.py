"""The SDK's exporter, configured by the standard environment variables, for this process alone.

It can be imported where OpenTelemetry is not installed: then its error says what to install.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

import trio

from ..sockets import TransportError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

INSTALL: Final = 'pip install "clearfunds[otel]" opentelemetry-sdk opentelemetry-exporter-otlp'

SHUTDOWN_SECONDS: Final = 3.0
"""Time for the last spans to leave, at the end."""

_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class OtelError(TransportError):
    """Spans cannot be exported: something is not installed, or not known."""


@asynccontextmanager
async def open_provider(version: str = "") -> AsyncGenerator[Tracer]:
    """Make a tracer whose spans are exported as the environment says, for the length of a block.

    `OTEL_TRACES_EXPORTER` (`otlp` by default; `console`, `none`, or any other that is installed),
    `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_PROTOCOL` (`http/protobuf`, or `grpc`),
    `OTEL_SERVICE_NAME` and so on mean the same as for the SDK. The provider is the block's own: the
    process's global one is neither used nor set.

    Leaving the block lets the last spans go out, for at most `SHUTDOWN_SECONDS`; spans are sent
    from a thread of the SDK's, never from the loop.

    Raises:
        OtelError: With a sentence that says what to install, or which exporter there is none of.
    """
    provider = _provider()
    try:
        yield provider.get_tracer("clearfunds", version or None)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SHUTDOWN_SECONDS):
            await trio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def check_exporter() -> None:
    """Check that `open_provider` could make one.

    Raises:
        OtelError: If not.
    """
    try:
        import opentelemetry.sdk.trace  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        msg = f"spans cannot be exported, as the OpenTelemetry SDK is not installed: {INSTALL}"
        raise OtelError(msg) from error
    _exporters()


def _provider() -> Any:
    check_exporter()
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if _says(SERVICE_NAME) else {SERVICE_NAME: "clearfunds"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for load in _exporters():
        provider.add_span_processor(BatchSpanProcessor(load()()))
    return provider


def _says(name: str) -> bool:
    """Whether the environment sets that attribute of the resource."""
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or f"{name}=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def _exporters() -> list[Any]:
    """Return the loaders of the exporter classes that the environment names."""
    found: list[Any] = []
    names = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    for name in dict.fromkeys(each.strip() for each in names.split(",")):
        if name in ("", "none"):
            continue
        full = _otlp() if name == "otlp" else name
        exporters = entry_points(group="opentelemetry_traces_exporter", name=full)
        if not exporters:
            what = "the OTLP exporter" if name == "otlp" else f"an exporter called {name!r}"
            msg = (
                f"spans cannot be exported: {what} is not installed: {INSTALL} (or say which with "
                "OTEL_TRACES_EXPORTER)"
            )
            raise OtelError(msg)
        found.append(next(iter(exporters)).load)
    return found


def _otlp() -> str:
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol not in _OTLP:
        known = ", ".join(_OTLP)
        msg = f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; known are {known}"
        raise OtelError(msg)
    return _OTLP[protocol]
