"""What the generator is tried on."""

from tests.transports.conftest import mosquitto, mosquitto_tls

__all__ = ["mosquitto", "mosquitto_tls"]
