"""Whose session is ended when nothing more may be kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.mqtt.server._room import ENDING_BATCH, RoomTaken, over_share


def ended(
    sessions: list[RoomTaken], limit: int, needed: int = 1, granted: dict[str, int] | None = None
) -> list[RoomTaken]:
    return over_share(sessions, lambda each: each, granted or {}, limit, lambda _: True, needed)


def test_the_innocent_keep_what_is_within_their_share() -> None:
    """One client left thousands behind; twenty others have ten messages each."""
    theirs = [RoomTaken("", f"mallory {n}", 16_000, 20_000) for n in range(4_000)]
    innocent = [RoomTaken("", f"till {n}", 1_000, 20_000) for n in range(20)]
    gone = ended(innocent + theirs, 64_020_000, needed=20_000 * 4_000)
    assert len(gone) == ENDING_BATCH
    assert not any(each in innocent for each in gone)


def test_a_user_pays_for_all_its_sessions() -> None:
    """Small ones, but many: the larger one of somebody else stays."""
    many = [RoomTaken("", "mallory", 10) for _ in range(100)]
    other = RoomTaken("", "alice", 300)
    assert ended([other, *many], 1_300) == many[:1]


def test_a_tenant_within_what_it_was_granted_keeps_it() -> None:
    mine = RoomTaken("mine", "alice", 600)
    theirs = [RoomTaken("theirs", "mallory", 100) for _ in range(4)]
    assert ended([mine, *theirs], 1_000, granted={"mine": 700}) == theirs[:1]
    # Nobody is over: then nobody's goes.
    assert ended([mine, *theirs], 1_000, granted={"mine": 700, "theirs": 500}) == []


def test_who_wants_more_than_its_share_has_to_make_room_itself() -> None:
    full = RoomTaken("", "alice", 900, wants=200)
    assert ended([full], 1_000) == [full]
    assert ended([RoomTaken("", "alice", 900, wants=50)], 1_000) == []


amounts = st.integers(0, 1_000)
kept = st.builds(RoomTaken, st.sampled_from("ab"), st.sampled_from("uvw"), amounts)


@given(st.lists(kept, max_size=12), st.integers(0, 3_000), st.booleans())
def test_nobody_within_its_share_goes_and_somebody_does_when_it_is_full(
    sessions: list[RoomTaken], needed: int, grants: bool
) -> None:
    used = sum(each.bytes for each in sessions)
    granted = {"a": used // 2} if grants else {}
    gone = ended(sessions, used, needed, granted)
    tenants = {each.tenant for each in sessions if each.bytes}
    of: dict[str, int] = {}
    for each in sessions:
        of[each.tenant] = of.get(each.tenant, 0) + each.bytes
    for each in gone:
        users = {s.user for s in sessions if s.tenant == each.tenant and s.bytes}
        share = float(granted.get(each.tenant, -1))
        if share < 0:
            mine = min(of.get("a", 0), granted["a"]) if grants else 0
            share = (used - mine) / max(1, len(tenants - granted.keys()))
        assert of[each.tenant] >= share
        theirs = sum(s.bytes for s in sessions if (s.tenant, s.user) == (each.tenant, each.user))
        assert theirs >= share / len(users)
    if used and needed:
        assert gone
