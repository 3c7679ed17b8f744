"""Arguments that look right: each works as meant, or is refused with what to write."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from clearfunds.accounts import Ledger, Profile, StuckPolicy
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter


@attrs.frozen
class Photo:
    """A value."""

    name: str


def test_the_word_of_a_policy_is_as_good(ledger: Ledger) -> None:
    word: Any = "drop_oldest"
    mailbox = Mailbox[Photo](ledger, "m", policy=word)
    assert mailbox.policy is StuckPolicy.DROP_OLDEST
    word = "conflate"
    mailbox.policy = word
    assert mailbox.policy is StuckPolicy.CONFLATE
    mailbox.relieve("it is stuck")
    assert mailbox.lagging
    mailbox.close()


@pytest.mark.parametrize("word", ["drop", "drop-oldest", 3, None])
def test_another_word_is_refused_at_once(word: Any, ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="choose of wait, disconnect, drop_oldest"):
        Mailbox[Photo](ledger, "m", policy=word)
    mailbox = Mailbox[Photo](ledger, "m")
    with pytest.raises(ValueError, match="is no policy for slow consumers"):
        mailbox.policy = word


@pytest.mark.parametrize("word", ["live", Profile.LIVE])
def test_a_profile_is_no_policy(word: Any, ledger: Ledger) -> None:
    with pytest.raises(ValueError, match=r"It is a profile.*Profile\(.*'?live"):
        Mailbox[Photo](ledger, "m", policy=word)
    with pytest.raises(ValueError, match="choose of balanced, lossless, live"):
        Profile("fast")


def test_swapped_arguments(ledger: Ledger) -> None:
    wrong: Any = Mailbox
    with pytest.raises(TypeError, match="a mailbox takes its ledger first, and then its name"):
        wrong("m", ledger)
    with pytest.raises(TypeError, match=r"write retain_limit=Limit\(items=5\)"):
        wrong(ledger, "m", retain_limit=5)
    nothing: Any = "x"
    with pytest.raises(TypeError, match=r"write Dataspace\(Ledger\(\)\)"):
        Dataspace(nothing)


@pytest.mark.parametrize("what", ["observed", "subscribed", "asserted"])
def test_a_block_that_is_not_entered_warns(what: str, ledger: Ledger) -> None:
    dataspace = Dataspace(ledger)
    account = ledger.open("a")
    mailbox = Mailbox[Publication](ledger, "m")
    begin: Callable[[], object] = {
        "observed": lambda: dataspace.observed(account, TopicFilter("a"), mailbox),
        "subscribed": lambda: dataspace.subscribed(account, TopicFilter("a")),
        "asserted": lambda: dataspace.asserted(account, Photo("a")),
    }[what]
    with pytest.warns(RuntimeWarning, match=f"write `with {what}"):
        begin()
    with dataspace.subscribed(account, Photo) as photos, dataspace.asserted(account, Photo("b")):
        assert photos.queue
    gc.collect()
    account.close()


@pytest.mark.parametrize(
    ("topic", "why"),
    [("a/+", "wildcard"), ("#", "wildcard"), ("", "empty"), ("a\0b", "NUL")],
)
def test_a_topic_of_a_publication_is_no_filter(topic: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Publication(topic, b"")


@pytest.mark.parametrize("payload", ["text", 5, None])
def test_a_payload_is_bytes(payload: Any) -> None:
    with pytest.raises(TypeError, match=r"payload is bytes, not .*encode"):
        Publication("a", payload)


def test_what_a_dataspace_says_of_itself(ledger: Ledger) -> None:
    dataspace = Dataspace(ledger)
    account = ledger.open("a")
    with dataspace.subscribed(account, Photo), dataspace.asserted(account, Photo("b")):
        text = repr(dataspace)
    assert text.startswith("<Dataspace: 1 patterns observed, ")
    assert repr(ledger.router) == "<Router of turns: the holder of their input>"
    account.close()
