"""What the generator is tried on."""

from tests.transports.conftest import mosquitto

__all__ = ["mosquitto"]
