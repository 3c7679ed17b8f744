"""The default policy of paging, against the model."""

from clearfunds.dataspace.queues import SteadyBacking
from tests.dataspace.queues.model import QueueMachine, machine_for


def look(machine: QueueMachine) -> None:
    backing = machine.queue.backing
    assert isinstance(backing, SteadyBacking)
    assert 1 <= backing.target <= 2048


TestSteady = machine_for(SteadyBacking, look)
