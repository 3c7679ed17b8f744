"""The kit itself: it must see what it is to see."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.attacks.kit import SHORT, Attacker, attacked, connect, publish, until_over


@pytest.mark.parametrize("qos", ["0", "1"])
def test_without_an_attack_nobody_notices_anything(qos: str) -> None:
    with attacked(SHORT, pair=("--qos", qos)) as scene:
        time.sleep(SHORT)
    scene.survived()
    assert scene.fared is not None
    assert scene.fared.sent >= 150


def test_a_relay_that_stands_still_is_noticed() -> None:
    with attacked(SHORT) as scene:
        os.kill(scene.relay.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(scene.relay.pid, signal.SIGCONT)
    assert scene.fared is not None
    assert scene.fared.max is not None
    assert scene.fared.max > 1
    scene.whole = True
    with pytest.raises(AssertionError, match="Fared"):
        scene.survived()


def test_an_attacker_is_read_and_answered() -> None:
    with attacked(SHORT) as scene, Attacker(scene.port, connect("mallory")) as mallory:
        mallory.let_in()
        until_over(0.5, lambda: mallory.send(publish("x", b"y")))
        accounts = scene.relay.ledger()["accounts"]
    assert any(account["name"].endswith("mallory") for account in accounts)
    scene.survived()
