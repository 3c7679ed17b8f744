"""Where spans go: as the standard environment variables say, or a sentence that says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clearfunds.pages.otel import OtelError
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports import TransportError
from clearfunds.transports._otel_export import check_exporter


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)


SPAN = """
import trio
from opentelemetry import trace
from clearfunds.pages.otel import open_provider
async def main():
    before = trace.get_tracer_provider()
    async with open_provider("1.0") as tracer:
        tracer.start_span("something").end()
    assert trace.get_tracer_provider() is before
trio.run(main)
"""


@pytest.mark.parametrize("service", ["clearfunds", "relay-7"])
def test_spans_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, none")
    if service != "clearfunds":
        monkeypatch.setenv("OTEL_SERVICE_NAME", service)
    # The SDK's exporter keeps the stdout that there is when it is imported.
    done = subprocess.run(
        [sys.executable, "-c", SPAN], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert '"name": "something"' in done.stdout
    assert f'"service.name": "{service}"' in done.stdout


def test_an_exporter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(
        OtelError, match=r"an exporter called 'carrier-pigeon' is not installed: pip"
    ):
        check_exporter()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
    with pytest.raises(OtelError, match="is 'smoke'; known are http/protobuf, grpc"):
        check_exporter()


async def test_a_relay_says_so_before_anything_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(TransportError, match="carrier-pigeon"):
        await serve_relay(RelaySettings(listen=("mqtt+tcp://127.0.0.1:0",), otel_every=1.0))


WITHOUT = """
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, No())
from clearfunds._cli import run
sys.exit(run(["relay", "--listen", "mqtt+tcp://127.0.0.1:0", "--otel-every", "5"]))
"""


def test_without_opentelemetry_it_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "clearfunds relay: spans cannot be exported, as the OpenTelemetry SDK is not installed: "
        'pip install "clearfunds[otel]" opentelemetry-sdk opentelemetry-exporter-otlp\n'
    )
