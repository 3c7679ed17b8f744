"""Celery, as it comes: acknowledgements after the task, prefetch, retries, a worker that dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trio

from tests.ports import lasting_port
from tests.relay.relay_process import relay_process
from tests.transports.peers import until

HERE = Path(__file__).parent


async def test_a_worker_and_its_client(tmp_path: Path) -> None:
    port = lasting_port()
    listen = ("--listen", f"amqp+tcp://127.0.0.1:{port}")
    async with relay_process(tmp_path, *listen) as relay:
        environment = {
            **os.environ,
            "BROKER": f"amqp://guest:guest@127.0.0.1:{port}//",
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
        }
        worker = (sys.executable, "-m", "celery", "-A", "celery_tasks", "worker")
        options = ("--pool", "solo", "--loglevel", "info", "--without-mingle")
        workers: list[subprocess.Popen[str]] = []

        def start(name: str) -> None:
            with (tmp_path / name).open("w") as log:
                workers.append(
                    subprocess.Popen(
                        (*worker, *options, "-n", name),
                        stdout=log,
                        stderr=log,
                        text=True,
                        env=environment,
                        cwd=tmp_path,
                    )
                )

        start("one")
        try:
            client = await trio.lowlevel.open_process(
                [sys.executable, str(HERE / "celery_tasks.py"), str(tmp_path / "mark")],
                stdout=subprocess.PIPE, env=environment, cwd=tmp_path,
            )  # fmt: skip
            await until(lambda: workers[0].poll() is not None, 60)  # the fatal task
            start("two")
            assert client.stdout is not None
            said = b""
            with trio.fail_after(60):
                async for piece in client.stdout:
                    said += piece
                assert await client.wait() == 0
        finally:
            for each in workers:
                each.terminate()
                await trio.to_thread.run_sync(each.wait)
        assert said.decode().splitlines() == [
            "2450",
            "[4, 2]",
            "3",
            "[[{'ok': 'pong'}]]",
            "done by the next worker",
        ]
        await relay.audit()
        await relay.stop()
        assert "Traceback" not in relay.log
