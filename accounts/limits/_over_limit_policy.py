"""Policies for a source of work that is above a limit."""

from __future__ import annotations

import enum


class OverLimitPolicy(enum.StrEnum):
    """Policy for a publisher whose funds are not clear (overload policy)."""

    WAIT = "wait"
    """It is not read until its funds are clear (backpressure)."""
    REFUSE = "refuse"
    """It is read on, and its work is refused, with the reason, where the protocol can say so; it
    is shed where it cannot."""
    SHED = "shed"
    """It is read on, and its work is dropped and counted (load shedding)."""
