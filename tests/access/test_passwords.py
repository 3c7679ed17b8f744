"""Password files as mosquitto_passwd writes them: what is in them, and what must not be."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.access import PasswordFileError, Passwords
from clearfunds.access._passwords import MAX_ITERATIONS, QUICK_ITERATIONS
from tests.programs import needs
from tests.transports.mqtt.users import SALT, coded, user_line

ANNA = user_line("anna", b"secret")


def test_lines_of_mosquitto_passwd_are_understood() -> None:
    """Made by mosquitto_passwd 2.0.11 for the password `geheim`."""
    passwords = Passwords.from_text(
        "anna:$7$101$DUgbyW9/pQh68QSt$PbcQbDZl+5FcubCXig1coeLWV1XNmSAwPwGD0YzMP37KRutGxsDHOrKjhcMi0"
        "BsW/kB7exNCeGu+5uh6VyddCg==\n"
        "bert:$6$yoMTdoeboJ3Obchp$1Yjyda0GHu4ji6eesC6eEcIjNBXBg5Pvis3j43lzWWsAjQoR7nJb3FaVOoSV7CegvN"
        "P//JCCNNUU4YMVl51N4g==\n"
    )
    for user in ("anna", "bert"):
        assert passwords.check(user, b"geheim")
        assert not passwords.check(user, b"Geheim")
        assert not passwords.check(user, b"geheim ")
        assert not passwords.check(user, b"")
        assert not passwords.check(user.upper(), b"geheim")
    assert not passwords.check("", b"geheim")
    assert len(passwords) == 2


def test_empty_lines_and_those_with_a_hash_sign_are_passed_over() -> None:
    text = f"# of the house\n\n{ANNA}\r\n   \n#bert:secret\n{user_line('ä b', b'', 0)}"
    passwords = Passwords.from_text(text)
    assert len(passwords) == 2
    assert passwords.check("anna", b"secret")
    assert passwords.check("ä b", b"")
    assert not passwords.check("#bert", b"secret")


@pytest.mark.parametrize("text", ["", "\n", "# nobody yet\n"])
def test_there_may_be_no_users(text: str) -> None:
    passwords = Passwords.from_text(text)
    assert not passwords
    assert passwords.quick
    assert not passwords.check("anna", b"secret")
    assert not passwords.check("", b"")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters=":"), min_size=1)
        .filter(lambda user: not user.startswith("#") and user != "-"),
        st.tuples(st.binary(max_size=200), st.integers(0, 3), st.binary(min_size=1, max_size=64)),
    ),
    st.binary(max_size=200),
)  # fmt: skip
def test_what_is_written_is_read(users: dict[str, tuple[bytes, int, bytes]], other: bytes) -> None:
    text = "\n".join(user_line(user, *entry) for user, entry in users.items())
    passwords = Passwords.from_text(text)
    assert len(passwords) == len(users)
    for user, (password, iterations, _) in users.items():
        assert passwords.check(user, password)
        assert passwords.check(user, other) == (
            as_hashed(other, iterations) == as_hashed(password, iterations)
        )
        assert not passwords.check(f"{user}x", password) or f"{user}x" in users


def as_hashed(password: bytes, iterations: int) -> bytes:
    """What of a password counts: HMAC fills it up with zeros to a block [RFC 2104 section 2]."""
    return password.rstrip(b"\0") if iterations and len(password) <= 128 else password


BAD = {
    "no colon": ("anna", "there is no colon"),
    "a secret alone": ("$7$secret", "there is no colon"),
    "no name": (user_line("", b"secret"), "the user has no name"),
    "blanks": (user_line("anna ", b"secret"), "blanks around the user's name"),
    "blanks before": (user_line(" anna", b"secret"), "blanks around the user's name"),
    "a control character": (user_line("an\x07na", b"secret"), "cannot be printed"),
    "a byte order mark": (user_line("\ufeffanna", b"secret"), "cannot be printed"),
    "nobody's name": (user_line("-", b"secret"), "stands for no name"),
    "plain text": ("anna:secret", "the password is not hashed"),
    "plain text like a hash": ("anna:se$7$101$cret", "the password is not hashed"),
    "no password": ("anna:", "the password is not hashed"),
    "another hash": ("anna:$argon2id$v=19$m=16,t=2,p=1$c2FsdA$aGFzaA", "is of an unknown kind"),
    "crypt's": ("anna:$5$rounds=5000$salt$hash", "is of an unknown kind"),
    "nothing but a sign": ("anna:$", "is of an unknown kind"),
    "parts missing": ("anna:$7$101$c2FsdA==", "parts of the hash are missing"),
    "old, with iterations": (ANNA.replace("$7$", "$6$"), "or there are too many"),
    "another part": (f"{ANNA}$", "or there are too many"),
    "iterations in words": (ANNA.replace("$101$", "$many$"), "the number of iterations"),
    "no iterations": (ANNA.replace("$101$", "$0$"), "the number of iterations"),
    "fewer than none": (ANNA.replace("$101$", "$-1$"), "the number of iterations"),
    "too many": (ANNA.replace("$101$", f"${MAX_ITERATIONS + 1}$"), "from 1 to 10000000"),
    "far too many": (ANNA.replace("$101$", f"${'9' * 5000}$"), "from 1 to 10000000"),
    "other digits": (ANNA.replace("$101$", "$\u0661$"), "the number of iterations"),
    "a salt that is none": (ANNA.replace(coded(SALT), "?alt"), "the salt is not in base64"),
    "a salt cut short": (ANNA.replace(coded(SALT), "c2FsdA"), "the salt is not in base64"),
    "no salt": (ANNA.replace(coded(SALT), ""), "the salt is empty"),
    "a hash that is none": (ANNA[:-3] + "?==", "the hash is not in base64"),
    "a hash with a letter": (ANNA[:-3] + "ä==", "the hash is not in base64"),
    "a short hash": (ANNA[: ANNA.rindex("$")] + "$c2FsdA==", "the hash has 4 bytes instead of 64"),
    "no hash": (ANNA[: ANNA.rindex("$") + 1], "the hash has 0 bytes instead of 64"),
    "twice": (user_line("bert", b"other"), "its user has line 2 already"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_said_with_its_line_and_without_a_secret(
    what: str, tmp_path: Path
) -> None:
    bad, why = BAD[what]
    text = f"# users\n{user_line('bert', b'secret')}\n\n{bad}\n"
    with pytest.raises(PasswordFileError) as caught:
        Passwords.from_text(text)
    said = str(caught.value)
    assert said.startswith("line 4: ")
    assert why in said
    assert "; " in said  # and what to do
    for secret in ("secret", "anna", "bert", coded(SALT), "cret", "salt$hash"):
        assert secret not in said
    file = tmp_path / "users"
    file.write_text(text, "utf-8")
    with pytest.raises(PasswordFileError) as caught:
        Passwords.from_file(file)
    assert str(caught.value) == f"{file}, {said}"


def test_a_name_in_another_encoding_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(f"{ANNA}\n{user_line('jörg', b'secret')}\n".encode("latin-1"))
    with pytest.raises(PasswordFileError, match="line 2: the user's name is not in UTF-8"):
        Passwords.from_file(file)


def test_a_user_that_is_not_there_costs_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of users that cost differently one stands in, for each name the same one."""
    made: list[int] = []
    real = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        made.append(iterations)
        return real(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    passwords = Passwords.from_text("\n".join(user_line(f"u{n}", b"secret", n) for n in (1, 2, 3)))
    made.clear()
    for number in range(100):
        assert not passwords.check(f"nobody{number}", b"secret")
    assert len(made) == 100
    assert set(made) == {1, 2, 3}
    first = made.copy()
    made.clear()
    for number in range(100):
        passwords.check(f"nobody{number}", b"secret")
    assert made == first
    assert not Passwords.from_text("").check("nobody", b"secret")
    assert made[100:] == [101]


def test_nobody_gets_in_by_the_hash_that_stands_in() -> None:
    """Whose password is the one that an unknown user gives."""
    passwords = Passwords.from_text(ANNA)
    assert not passwords.check("bert", b"secret")


def test_whether_a_file_is_quick_is_said_of_all_its_users() -> None:
    assert Passwords.from_text(user_line("a", b"x", QUICK_ITERATIONS)).quick
    slow = user_line("b", b"x", QUICK_ITERATIONS + 1)
    assert not Passwords.from_text(f"{ANNA}\n{slow}").quick


def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(ANNA)
    passwords = Passwords.from_file(str(file))
    file.write_text(user_line("bert", b"other", QUICK_ITERATIONS + 1))
    assert passwords.check("anna", b"secret")
    passwords.reload()
    assert not passwords.check("anna", b"secret")
    assert passwords.check("bert", b"other")
    assert not passwords.quick
    for spoil, error in (
        (lambda: file.write_text("bert:other"), PasswordFileError),
        (file.unlink, FileNotFoundError),
        (file.mkdir, IsADirectoryError),
    ):
        spoil()
        with pytest.raises(error):
            passwords.reload()
        assert passwords.check("bert", b"other")
        assert len(passwords) == 1


def test_a_text_stays_as_it_is() -> None:
    passwords = Passwords.from_text(ANNA)
    passwords.reload()
    assert passwords.check("anna", b"secret")


def test_nothing_secret_is_shown() -> None:
    passwords = Passwords.from_text(ANNA)
    assert repr(passwords) == "<Passwords: 1 users, of a text>"
    assert coded(SALT) not in f"{vars(type(passwords))} {passwords!r}"


@needs("mosquitto_passwd")
def test_mosquitto_passwd_writes_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "users"

    def add(user: str, password: bytes, *options: str) -> None:
        argv = ["mosquitto_passwd", *options, "-b", os.fspath(file), user, os.fsdecode(password)]
        subprocess.run(argv, check=True, timeout=30)

    cases = {
        "anna": b"secret",
        "with space": b"and $7$ signs:",
        "jörg": "süß".encode(),
        "binary": b"\xff\xfe\x01",
        "long": b"x" * 300,
        "a/b": b" blanks ",
    }
    for number, (user, password) in enumerate(cases.items()):
        add(user, password, *(() if number else ("-c",)))
        add(f"{user} of old", password, "-H", "sha512")
    passwords = Passwords.from_file(file)
    assert len(passwords) == 2 * len(cases)
    for user, password in cases.items():
        for name in (user, f"{user} of old"):
            assert passwords.check(name, password)
            assert not passwords.check(name, password + b"x")
            assert not passwords.check(name, b"")
