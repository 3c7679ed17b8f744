"""AMQP 0-9-1: connections of RabbitMQ's clients."""

from ._connection import Ack as Ack
from ._connection import Command as Command
from ._connection import ConnectionInput as ConnectionInput
from ._connection import Greeting as Greeting
from ._connection import Publish as Publish
from ._connection import State as State
from ._connection import WrongProtocolError as WrongProtocolError
from ._properties import BasicProperties as BasicProperties
from ._replies import AmqpError as AmqpError
from ._replies import Code as Code
from ._server import AmqpServer as AmqpServer
from ._session import AmqpSession as AmqpSession
