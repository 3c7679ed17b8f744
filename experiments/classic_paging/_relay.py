"""Runs a relay whose queues page as RabbitMQ's did before classic queues v2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from clearfunds.accounts import DISK
from clearfunds.relay import (
    AlarmSettings,
    Companion,
    Parts,
    RelayAddresses,
    RelayReport,
    serve_relay,
)
from clearfunds.relay._alarms import memory_limit
from clearfunds.relay._memory import memory_used

from ._classic import classic
from ._memory_monitor import MemoryMonitor

if TYPE_CHECKING:
    from clearfunds.accounts import Account
    from clearfunds.relay import Adjusting, RelaySettings


async def serve_with_classic_paging(
    settings: RelaySettings,
    *,
    task_status: trio.TaskStatus[RelayAddresses] = trio.TASK_STATUS_IGNORED,
    stop: trio.Event | None = None,
    companion: Companion | None = None,
    adjusting: Adjusting | None = None,
) -> RelayReport:
    """Run a relay with classic paging, as `serve_relay` runs one with steady paging.

    Queues page out from half of the memory on at which the memory alarm goes up; never without one.
    Arguments, errors and cancellation are those of `serve_relay`.
    """
    return await serve_relay(
        settings,
        task_status=task_status,
        stop=stop,
        companion=companion,
        adjusting=adjusting,
        make_parts=partial(_make_parts, settings),
    )


def _make_parts(settings: RelaySettings, server: Account) -> Parts:
    mark = AlarmSettings(memory=settings.memory_alarm).memory_mark(memory_limit())
    if mark is None:
        return Parts(backing=classic())
    return Parts(
        backing=classic(
            monitor=MemoryMonitor(
                clock=server.ledger.clock,
                used=memory_used,
                limit=mark,
                # The account that alarms halt.
                disk_short=lambda: DISK in server.halted,
            )
        )
    )
