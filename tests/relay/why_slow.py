"""What runs beside the tests of why a slow consumer is slow, in processes of its own."""

from typing import Final

SUBSCRIBER: Final = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(bytes.fromhex("10130004 4d515454 04020000 0007 61726368697665"))
sock.sendall(bytes.fromhex("8206 0001 0001 74 00"))
while True:
    data = sock.recv(65536)
    if data[:1] == b"\\x90" or b"\\x90\\x03" in data:
        print("subscribed", flush=True)
    if not data:
        break
"""
"""Subscribes to `t` as `archive`, and reads on."""

LOSSY_LINK: Final = ""
