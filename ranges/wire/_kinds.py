"""The kinds of frames; from 64 to 95 those of writers."""

from __future__ import annotations

import enum


class Kind(enum.IntEnum):
    """The kinds of frames."""

    HELLO = 1
    WELCOME = 2
    ERROR = 3
    PING = 4
    PONG = 5
    AUTH = 6
    AUTHENTICATED = 7
    ATTACH = 16
    ATTACHED = 17
    DETACH = 18
    DETACHED = 19
    HEAD = 24
    HEAD_IS = 25
    FETCH = 26
    RECORDS = 27
    ACK = 28
    ACKED = 29
    DROP = 30
    DROPPED = 31
    REACH = 32
    REACHED = 33
    OPEN = 64
    OPENED = 65
    STAGE = 66
    STAGE_END = 68
    STAGED = 69
    COMMIT = 70
    COMMITTED = 71
    ABORT = 72
    ABORTED = 73
    LAST = 74
    LAST_IS = 75
    FORGET = 76
    FORGOTTEN = 77
    WAITING = 79
