"""The tasks of a Celery application, for its worker and its client; see `test_celery.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("celery_tasks", broker=os.environ["BROKER"], backend="rpc://")
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 4
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.task(bind=True, max_retries=3)
def flaky(self: Any, number: int) -> list[int]:
    """Fail twice, and be tried again."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return [number, self.request.retries]


@app.task
def fatal(mark: str) -> str:
    """End the worker in the middle of the task, the first time."""
    if not Path(mark).exists():
        Path(mark).touch()
        os._exit(9)
    return "done by the next worker"


def ask() -> None:
    """Run as a client; print what comes."""
    print(sum(each.get(timeout=30) for each in [add.delay(n, n) for n in range(50)]))
    print(flaky.delay(4).get(timeout=30))
    print(add.apply_async((1, 2), countdown=0.5).get(timeout=30))
    print([list(each.values()) for each in app.control.ping(timeout=2) or ()])
    print(fatal.delay(sys.argv[1]).get(timeout=60))


if __name__ == "__main__":
    ask()
