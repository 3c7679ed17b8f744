"""Something to do for a task that waits."""

import trio


class Wake:
    """Something to do for one task, which waits for it."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Wake the task, now or when it waits next."""
        self._event.set()

    async def wait(self, seconds: float = float("inf")) -> bool:
        """Wait until there is something to do, or for so long; return whether there is.

        Cancellation: what there is to do is not forgotten.
        """
        with trio.move_on_after(seconds):
            await self._event.wait()
        found = self._event.is_set()
        self._event = trio.Event()
        return found
