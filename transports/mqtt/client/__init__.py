"""An MQTT client for Trio (`open_mqtt`)."""
