"""RabbitMQ's paging before classic queues v2: by memory, with a target for each queue."""

from __future__ import annotations

from ._classic import ClassicBacking as ClassicBacking
from ._classic import classic as classic
from ._classic_parts import ClassicSettings as ClassicSettings
from ._memory_monitor import MemoryMonitor as MemoryMonitor
from ._memory_monitor import MemoryMonitorStatistics as MemoryMonitorStatistics
from ._relay import serve_with_classic_paging as serve_with_classic_paging
