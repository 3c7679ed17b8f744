"""The default policy of paging, against the model."""

import pytest

from clearfunds.dataspace.queues import SteadyBacking
from tests.dataspace.queues.model import QueueMachine, machine_for


def look(machine: QueueMachine) -> None:
    """At the head there is no more in RAM than consumers take in two seconds."""
    backing = machine.queue.backing
    assert isinstance(backing, SteadyBacking)
    assert 1 <= backing.target <= 2048
    numbers = backing.statistics()
    if numbers.disk_only:
        assert machine.shelf is not None
        assert len(machine.shelf) >= numbers.disk_only


TestSteady = machine_for(SteadyBacking, look)
TestSteadyForLong = pytest.mark.long(machine_for(SteadyBacking, look, 4000))
