"""The relay's side of MQTT: sessions, persistent sessions, shared subscriptions, log-ins."""
