"""The example work queue, run as a process, with the clients that are in the same file."""

import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from clearfunds.dataspace.queues import AckBatcher, Acknowledgement, Verdict
from examples.work_queue import (
    MAX_FRAME,
    Client,
    Frames,
    Job,
    ServerSaidNoError,
    connect,
    frame,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = (str(ROOT / "examples" / "work_queue.py"),)
CLASSIC = ("-m", "experiments.classic_paging.work_queue")
HOST = "127.0.0.1"


@attrs.frozen
class Running:
    process: trio.Process
    port: int


@asynccontextmanager
async def running(
    directory: Path | None, *options: str, program: tuple[str, ...] = EXAMPLE
) -> AsyncGenerator[Running]:
    """Run the server on a free port, and see that it ends as it should."""
    where = [] if directory is None else [f"--directory={directory}", "--fsync-interval=0.01"]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-W", "error", *program, "serve", f"{HOST}:0", *where, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = b""
    try:
        with trio.fail_after(60):
            while b"\n" not in said:
                said += await process.stdout.receive_some()
            async with trio.open_nursery() as nursery:
                errors: list[bytes] = []
                nursery.start_soon(collect, process.stderr, errors)
                yield Running(process, int(said.split(b":")[-1]))
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)
                    assert await process.wait() == 0, b"".join(errors)
        assert b"Traceback" not in b"".join(errors), b"".join(errors).decode()
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()


async def collect(stream: trio.abc.ReceiveStream, into: list[bytes]) -> None:
    async for data in stream:
        into.append(bytes(data))


async def take(client: Client, count: int) -> list[Job]:
    return [await client.job() for _ in range(count)]


async def until(client: Client, queue: str, holds: Callable[[dict[str, int]], bool]) -> None:
    """Ask until what the server says of a queue is so."""
    while not holds((await client.statistics()).get(queue, {})):  # noqa: ASYNC110 (it is asked)
        await trio.sleep(0.01)


def is_beyond_its_budget(queue: dict[str, int]) -> bool:
    return queue["on_disk"] > 0 and queue["ready"] - queue["on_disk"] > 8_000


def is_idle(queue: dict[str, int]) -> bool:
    return not queue["workers"]


def one(job: Job, verdict: Verdict = Verdict.ACK) -> Acknowledgement:
    return Acknowledgement(job.tag, False, verdict)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_are_the_same_however_they_come(step: int) -> None:
    data = frame(b"P", b"a/b", b"\0", b"x" * 300) + frame(b"S") + frame(b"K" * 70)
    frames, found = Frames(), list[bytes]()
    for start in range(0, len(data), step):
        frames.feed(data[start : start + step])
        while (body := frames.take()) is not None:
            found.append(body)
    assert found == [b"Pa/b\0" + b"x" * 300, b"S", b"K" * 70]


@pytest.mark.parametrize("size", [0, MAX_FRAME + 1, 0xFFFF_FFFF])
def test_a_frame_that_is_empty_or_too_large_is_refused(size: int) -> None:
    frames = Frames()
    frames.feed(size.to_bytes(4, "big"))
    with pytest.raises(ValueError, match=f"a frame of {size} bytes"):
        frames.take()


@pytest.mark.parametrize("program", [EXAMPLE, CLASSIC])
async def test_jobs_are_confirmed_together_and_shared_among_workers(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    count = 3_000
    async with running(tmp_path / "jobs", program=program) as server:
        done: list[int] = []
        shares = [0, 0]
        answers: list[int] = []
        all_done = trio.Event()

        async def work(worker: int) -> None:
            async with connect(HOST, server.port) as client, trio.open_nursery() as acking:
                client.consume("resize", 20)
                with AckBatcher(client.acknowledge, prefetch=20, every=5, delay=0.01) as acks:
                    acking.start_soon(acks.run)
                    while len(done) < count:
                        job = await client.job()
                        acks.delivered(job.tag)
                        assert (job.topic, job.redelivered) == ("jobs/resize", False)
                        done.append(int(job.payload))
                        shares[worker] += 1
                        acks.ack(job.tag)
                        await trio.lowlevel.checkpoint()
                all_done.set()

        async with connect(HOST, server.port, in_flight=500) as client:
            await client.declare("resize", "jobs/#")
            client.on_confirm = lambda numbers, refused: answers.append(len(numbers))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, 0)
                nursery.start_soon(work, 1)
                for number in range(count):
                    assert await client.publish("jobs/resize", b"%d" % number) == number + 1
                await client.window.wait_answered()
                await all_done.wait()
                nursery.cancel_scope.cancel()
            assert sorted(done) == list(range(count))
            assert min(shares) > count / 10
            assert sum(answers) == count
            assert len(answers) < count / 2, "confirms are said together under load"
            assert client.refused == 0
            await until(client, "resize", is_idle)
            now = (await client.statistics())["resize"]
            # The last acks may have gone with their connections.
            assert now["ready"] <= 40
            assert now["published"] == count


async def test_what_was_not_acked_goes_to_another_worker_in_its_place(tmp_path: Path) -> None:
    async with running(tmp_path / "jobs") as server, connect(HOST, server.port) as client:
        await client.declare("q", "jobs")
        for number in range(8):
            await client.publish("jobs", b"%d" % number)
        async with connect(HOST, server.port) as first:
            first.consume("q", 5)
            jobs = await take(first, 5)
            assert [job.payload for job in jobs] == [b"0", b"1", b"2", b"3", b"4"]
            first.acknowledge(one(jobs[1]))
            assert (await first.job()).payload == b"5"
        await until(client, "q", is_idle)
        async with connect(HOST, server.port) as second:
            second.consume("q", 10)
            jobs = await take(second, 7)
            assert [(job.payload, job.redelivered) for job in jobs] == [
                *((b"%d" % n, True) for n in (0, 2, 3, 4, 5)),
                *((b"%d" % n, False) for n in (6, 7)),
            ]
            second.acknowledge(one(jobs[0], Verdict.REQUEUE))
            again = await second.job()
            assert (again.payload, again.redelivered) == (b"0", True)
            second.acknowledge(Acknowledgement(0, True, Verdict.ACK))
            await until(client, "q", lambda q: not q["unacked"])
            assert (await client.statistics())["q"]["ready"] == 0


async def test_what_is_discarded_is_a_dead_letter(tmp_path: Path) -> None:
    async with running(tmp_path / "jobs") as server, connect(HOST, server.port) as client:
        await client.declare("q", "jobs")
        await client.declare("failed", "dead/#")
        await client.publish("jobs", b"poison")
        async with connect(HOST, server.port) as worker:
            worker.consume("q", 1)
            worker.acknowledge(one(await worker.job(), Verdict.DISCARD))
            worker.consume("failed", 1)
            dead = await worker.job()
            assert (dead.topic, dead.payload) == ("dead/q", b"poison")


async def confirmed_and_killed(server: Running) -> None:
    async with connect(HOST, server.port) as client:
        await client.declare("one", "jobs/#")
        await client.declare("two", "jobs/+")
        for number in range(400):
            await client.publish("jobs/a", b"%d" % number)
        await client.window.wait_answered()
        server.process.kill()
        with trio.CancelScope(shield=True):
            await server.process.wait()
        await trio.sleep_forever()


async def test_what_was_confirmed_survives_a_kill_and_what_was_acked_does_not_come_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "jobs") as server:
        with pytest.raises(ExceptionGroup) as caught:
            await confirmed_and_killed(server)
        assert caught.group_contains((ServerSaidNoError, trio.BrokenResourceError))
    async with running(tmp_path / "jobs") as server:
        for queue in ("one", "two"):
            async with connect(HOST, server.port) as client:
                client.consume(queue, 1_000)
                jobs = await take(client, 400)
                assert [job.payload for job in jobs] == [b"%d" % n for n in range(400)]
                client.acknowledge(Acknowledgement(399, True, Verdict.ACK))
        async with connect(HOST, server.port) as client:
            for queue in ("one", "two"):
                await until(client, queue, lambda q: q["ready"] == 1)
    async with running(tmp_path / "jobs") as server, connect(HOST, server.port) as client:
        client.consume("one", 10)
        job = await client.job()
        assert (job.payload, job.redelivered) == (b"399", True)
        assert (await client.statistics())["one"]["ready"] == 0


async def test_what_is_on_disk_is_no_debt_of_its_publisher_s(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "jobs") as server,
        connect(HOST, server.port, in_flight=2_000) as client,
    ):
        await client.declare("q", "jobs")
        # More than a connection may owe, and nobody works.
        await publish_all(client, 12_000)
        now = (await client.statistics())["q"]
        assert (now["ready"], now["on_disk"]) == (12_000, 12_000)
        assert now["in_memory"] < 3_000


async def test_beyond_the_disk_budget_publishers_wait_for_the_workers(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "jobs", "--disk-limit=10000") as server,
        connect(HOST, server.port, in_flight=50_000) as client,
        trio.open_nursery() as nursery,
    ):
        await client.declare("q", "jobs")
        nursery.start_soon(publish_all, client, 15_000)
        async with connect(HOST, server.port) as worker:
            # What comes to rest after its publisher was stopped does not let it go on: it owes for
            # more than half of its limit still.
            await until(worker, "q", is_beyond_its_budget)
            assert (await worker.statistics())["q"]["on_disk"] < 2_000
            worker.consume("q", 1_000)
            for number in range(15_000):
                job = await worker.job()
                assert job.payload == b"%d" % number
                if number % 100 == 99:
                    worker.acknowledge(Acknowledgement(job.tag, True, Verdict.ACK))


async def test_without_a_directory_a_publisher_waits_for_the_workers() -> None:
    async with running(None) as server, connect(HOST, server.port, in_flight=50_000) as client:
        await client.declare("q", "jobs")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all, client, 30_000)
            async with connect(HOST, server.port) as worker:
                await until(worker, "q", lambda q: q["ready"] > 10_000)
                await trio.sleep(0.1)
                # It owes for so many, and is not read any more.
                assert (await worker.statistics())["q"]["ready"] == 10_001
                worker.consume("q", 1_000)
                for number in range(30_000):
                    job = await worker.job()
                    assert job.payload == b"%d" % number
                    if number % 100 == 99:
                        worker.acknowledge(Acknowledgement(job.tag, True, Verdict.ACK))
        assert client.window.last == 30_000


async def publish_all(client: Client, count: int) -> None:
    for number in range(count):
        await client.publish("jobs", b"%d" % number)
    await client.window.wait_answered()


NONSENSE = [
    (frame(b"?"), "a frame begins with one of"),
    (frame(b"C", b"\0\0\0\0", b"q"), "a prefetch of 0"),
    (frame(b"C", b"\0\0\0\1", b"nobody"), "there is no queue nobody"),
    (frame(b"A", bytes(8), b"\0"), "unknown delivery tag"),
    (frame(b"A"), "unpack"),
    (frame(b"D", b"q", b"\0", b"a/#/b"), "#"),
    (frame(b"D", b"", b"\0", b"a"), "names of 1 to 255"),
    (frame(b"P", b"a/#", b"\0"), "is no topic"),
    (frame(b"P", b"\xff", b"\0"), "utf-8"),
    (b"\xff" * 4, "a frame of"),
]


async def test_what_makes_no_sense_ends_the_connection_with_a_sentence() -> None:
    async with running(None) as server:
        for data, why in NONSENSE:
            async with await trio.open_tcp_stream(HOST, server.port) as stream:
                await stream.send_all(data)
                said = b"".join([piece async for piece in stream])
                assert why in said.decode(errors="replace")
        async with connect(HOST, server.port) as client:
            assert await client.statistics() == {}


async def do_both(server: Running, letters: str) -> None:
    async with connect(HOST, server.port) as client:
        await client.declare("q", "jobs")
        for letter in letters:
            if letter == "P":
                await client.publish("jobs", b"")
            else:
                client.consume("q", 1)
        await trio.sleep_forever()


async def test_a_connection_publishes_or_works() -> None:
    async with running(None) as server:
        for letters in ("PC", "CP"):
            with pytest.raises(ExceptionGroup) as caught:
                await do_both(server, letters)
            assert caught.group_contains(ServerSaidNoError, match="another one")


async def test_the_commands(tmp_path: Path) -> None:
    async with running(tmp_path / "jobs") as server:
        address = f"{HOST}:{server.port}"
        command = [sys.executable, "-W", "error", *EXAMPLE]
        worker = await trio.lowlevel.open_process(
            [*command, "work", address, "resize", "--filter=jobs/+", "--ack-every=5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert worker.stdout is not None
        assert worker.stderr is not None
        try:
            async with connect(HOST, server.port) as client:
                await until(client, "resize", lambda q: q.get("workers") == 1)
            put = await trio.run_process(
                [*command, "put", address, "jobs/one"],
                stdin=b"".join(b"%d\n" % n for n in range(100)),
                capture_stdout=True,
            )
            assert put.stdout == b"100 confirmed, 0 refused\n"
            printed = b""
            while printed.count(b"\n") < 100:
                printed += await worker.stdout.receive_some()
            assert printed.decode().splitlines() == [f"jobs/one {n}" for n in range(100)]
            async with connect(HOST, server.port) as client:
                await until(client, "resize", lambda q: q["acked"] == 100)
            worker.send_signal(signal.SIGINT)
            assert await worker.wait() == 0
            assert b"stopped" in await worker.stderr.receive_some()
        finally:
            worker.kill()
            await worker.wait()
            await worker.stdout.aclose()
            await worker.stderr.aclose()


async def command(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run one of the commands to its end."""
    with trio.fail_after(60):
        return await trio.run_process(
            [sys.executable, "-W", "error", *EXAMPLE, *arguments],
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )


JOBS = b"".join(b"%d\n" % n for n in range(100))


@pytest.mark.parametrize("on_disk", [True, False])
async def test_the_commands_in_the_order_of_the_docstring(tmp_path: Path, on_disk: bool) -> None:
    where = tmp_path / "jobs" if on_disk else None
    async with running(where, "--queue=resize=jobs/resize") as server:
        address = f"{HOST}:{server.port}"
        put = await command("put", address, "jobs/resize", stdin=JOBS)
        assert (put.returncode, put.stdout) == (0, b"100 confirmed, 0 refused\n"), put.stderr
        worker = await trio.lowlevel.open_process(
            [sys.executable, *EXAMPLE, "work", address, "resize", "--prefetch=10"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert worker.stdout is not None
        try:
            printed = b""
            with trio.fail_after(60):
                while printed.count(b"\n") < 100:
                    data = await worker.stdout.receive_some()
                    assert data, "the worker has ended"
                    printed += data
            assert printed.decode().splitlines() == [f"jobs/resize {n}" for n in range(100)]
        finally:
            worker.kill()
            await worker.wait()
            await worker.stdout.aclose()


async def test_what_no_queue_is_there_for_is_not_confirmed(tmp_path: Path) -> None:
    async with running(tmp_path / "jobs", "--queue=resize=jobs/resize") as server:
        put = await command("put", f"{HOST}:{server.port}", "jobs/other", stdin=JOBS)
        assert (put.returncode, put.stdout) == (1, b"0 confirmed, 100 refused\n")
        assert put.stderr == b"work_queue: no queue takes jobs/other; declare one first\n"
        async with connect(HOST, server.port) as client:
            # Those that are taken are confirmed nevertheless.
            for topic in ("jobs/resize", "jobs/other", "jobs/resize"):
                await client.publish(topic, b"")
            await client.window.wait_answered()
            assert (client.refused, client.window.last) == (1, 3)
            assert (await client.statistics())["resize"]["ready"] == 2


async def test_a_queue_that_is_there_with_another_filter_is_not_bound_anew(tmp_path: Path) -> None:
    async with running(tmp_path / "jobs", "--queue=q=jobs/a"):
        pass
    where = f"--directory={tmp_path / 'jobs'}"
    run = await command("serve", f"{HOST}:0", where, "--queue=q=jobs/b")
    assert run.returncode == 1
    assert run.stderr == b"work_queue: queue q is bound to jobs/a, not to jobs/b\n"


@pytest.mark.parametrize(
    "given",
    [
        ("put", "localhost", "jobs/x"),
        ("work", "localhost:", "q"),
        ("serve", ":7001"),
        ("serve", "localhost:70000"),
        ("serve", f"{HOST}:0", "--queue=jobs"),
        ("serve", f"{HOST}:0", "--queue=q=a/#/b"),
    ],
)
async def test_what_cannot_be_meant_is_said_in_a_line(given: tuple[str, ...]) -> None:
    run = await command(*given)
    assert run.returncode == 2
    assert run.stderr.decode().splitlines()[-1].startswith(f"work_queue.py {given[0]}: error: ")
