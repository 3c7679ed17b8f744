"""`clearfunds queues`: look at AMQP queues, empty them, move messages."""

from ._command import queues as queues
