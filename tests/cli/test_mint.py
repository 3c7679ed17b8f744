"""`clearfunds mint`: keys, references, and references that allow less."""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli import run
from clearfunds.transports.syndicate import (
    attenuated_sturdyref,
    is_genuine,
    mint,
    read_sturdyref,
)
from clearfunds.transports.syndicate._preserves import decode_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

KEY = bytes(range(32))
SECRET = "<reject <rec Secret [<_>]>>"
ONLY_SAYS = "<rewrite <bind <rec Says [<_> <_>]>> <ref 0>>"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "relay.key"
    file.write_text(f"{KEY.hex()}\n")
    file.chmod(0o600)
    file.chmod(0o600)
    return file


@pytest.fixture
def minted(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what runs the command and returns its one line; nothing may stand on stderr."""

    def minted(*argv: object) -> str:
        assert run(["mint", *map(str, argv)]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert captured.out.endswith("\n")
        return captured.out.removesuffix("\n")

    return minted


# -- making references ----------------------------------------------------------------------------


def test_the_reference_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # What syndicate-server makes for the examples' key, which is empty: everybody knows it.
    file = tmp_path / "empty.key"
    file.touch(0o600)
    assert run(["mint", "--key-file", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ('<ref {oid: "syndicate" sig: #x"69ca300c1dbfa08fba692102dd82311a"}>\n')
    assert "has 0 bytes and can be guessed" in captured.err
    assert captured.err.count("\n") == 1


def test_a_reference_is_one_line_in_hex(key_file: Path, minted: Callable[..., str]) -> None:
    line = minted("--key-file", key_file)
    assert re.fullmatch(r'<ref \{oid: "syndicate" sig: #x"[0-9a-f]{32}"\}>', line)
    assert read_sturdyref(line) == mint("syndicate", KEY)


@pytest.mark.parametrize("oid", ["other", "", 'with "quotes" and\nlines', "<not a record>", "ö"])
def test_an_oid_is_a_plain_string(oid: str, key_file: Path, minted: Callable[..., str]) -> None:
    line = minted("--key-file", key_file, "--oid", oid)
    assert "\n" not in line
    assert read_sturdyref(line) == mint(oid, KEY)


def test_caveats_are_added_in_their_order(key_file: Path, minted: Callable[..., str]) -> None:
    line = minted("--key-file", key_file, "--caveat", SECRET, "--caveat", f" {ONLY_SAYS}\n")
    assert line.endswith(f" caveats: [{SECRET} {ONLY_SAYS}]}}>")
    ref = read_sturdyref(line)
    assert ref == mint("syndicate", KEY, [decode_text(SECRET), decode_text(ONLY_SAYS)])
    assert is_genuine(ref, KEY)


def test_options_come_from_elsewhere_too(
    key_file: Path,
    minted: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toml = tmp_path / "clearfunds.toml"
    toml.write_text(f"[mint]\nkey_file = '{key_file}'\ncaveat = ['{SECRET}']\n", "utf-8")
    monkeypatch.setenv("CLEARFUNDS_MINT_OID", "elsewhere")
    line = minted("--config", toml)
    assert read_sturdyref(line) == mint("elsewhere", KEY, [decode_text(SECRET)])


# -- keys -----------------------------------------------------------------------------------------


def test_a_new_key_is_for_its_owner_alone(tmp_path: Path, minted: Callable[..., str]) -> None:
    files = [tmp_path / "one.key", tmp_path / "other.key"]
    before = os.umask(0)
    try:
        lines = [minted("--key-file", file, "--new-key") for file in files]
    finally:
        os.umask(before)
    keys = [bytes.fromhex(file.read_text()) for file in files]
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]
    for file, key, line in zip(files, keys, lines, strict=True):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert read_sturdyref(line) == mint("syndicate", key)
        # What it made it reads, and makes the same of it.
        assert minted("--key-file", file) == line


def test_a_key_is_not_overwritten(
    key_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "nowhere.key")
    for file in (key_file, link):
        assert run(["mint", "--key-file", str(file), "--new-key"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"clearfunds mint: {file} exists and is not overwritten")
        assert captured.err.count("\n") == 1
    assert bytes.fromhex(key_file.read_text()) == KEY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.key", "relay.key"]


def test_what_cannot_be_minted_leaves_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.key"
    argv = ["mint", "--key-file", str(file), "--new-key", "--caveat", "<expires 2030>"]
    assert run(argv) == 2
    assert capsys.readouterr().out == ""
    assert not file.exists()


def test_a_key_that_others_can_read_is_refused(
    key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key_file.chmod(0o604)
    assert run(["mint", "--key-file", str(key_file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"clearfunds mint: others on this machine can read {key_file}, which has a secret in it: "
        f"chmod 600 {key_file} (see"
    )


# -- references that allow less -------------------------------------------------------------------


def test_whoever_has_a_reference_can_make_one_that_allows_less(
    key_file: Path, minted: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = minted("--key-file", key_file, "--oid", "x", "--caveat", SECRET)
    less = minted("--attenuate", whole, "--caveat", ONLY_SAYS)
    assert less == minted(
        *("--key-file", key_file, "--oid", "x", "--caveat", SECRET, "--caveat", ONLY_SAYS)
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{whole}\n"))
    assert minted("--attenuate", "-", "--caveat", ONLY_SAYS) == less


def test_references_of_others_are_attenuated_as_they_are(minted: Callable[..., str]) -> None:
    # A symbol for an oid, and base64, as other programs write it.
    text = "<ref {oid: service, sig: #[acowDB2/oI+6aSEC3YIxGg==]}>"
    expected = attenuated_sturdyref(read_sturdyref(text), [decode_text(SECRET)])
    line = minted("--attenuate", text, "--caveat", SECRET)
    assert line.startswith('<ref {oid: service sig: #x"')
    assert read_sturdyref(line) == expected


@pytest.mark.parametrize(
    ("caveats", "reason"),
    [
        (["<expires 2030>"], "no caveat is called 'expires'"),
        ([f'<reject <lit "{"x" * 20_000}">>'], "more than 16384 bytes of caveats"),
    ],
)
def test_a_reference_that_lets_nothing_through_is_a_warning(
    caveats: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f'<ref {{oid: "x" sig: #x"00" caveats: [{" ".join(caveats)}]}}>'
    assert run(["mint", "--attenuate", text, "--caveat", SECRET]) == 0
    captured = capsys.readouterr()
    assert len(read_sturdyref(captured.out).caveats) == 2
    assert captured.err.count("\n") == 1
    assert f"lets nothing through for this reference: {reason}" in captured.err


# -- mistakes -------------------------------------------------------------------------------------

DEEP = "<reject " + "<arr [" * 40 + "<_>" + "]>" * 40 + ">"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give --key-file FILE (and --new-key to make a key), or --attenuate REF"),
        (["--new-key"], "give --key-file FILE"),
        (["--caveat", SECRET], "give --key-file FILE"),
        (["--key-file", "no.key"], "no.key: No such file or directory"),
        (["--key-file", "no/such.key", "--new-key"], "no/such.key: No such file or directory"),
        (["--key-file", "KEY", "--caveat", "<reject"], "--caveat <reject: the text ends in the"),
        (["--key-file", "KEY", "--caveat", ""], "--caveat : the text ends in the middle"),
        (["--key-file", "KEY", "--caveat", "<reject]"], "an unexpected ']' at byte 7"),
        (["--key-file", "KEY", "--caveat", f"{SECRET} 1"], "'1' follows the value"),
        (["--key-file", "KEY", "--caveat", "reject"], "lets nothing through: a caveat is a record"),
        (["--key-file", "KEY", "--caveat", "<reject 1>"], "<reject 1>: this caveat lets nothing"),
        (["--key-file", "KEY", "--caveat", "<reject <lit #:1>>"], "cannot have a reference in it"),
        (["--key-file", "KEY", "--caveat", DEEP], "...: a packet in text is nested more than 64"),
        (["--key-file", "KEY", "--oid", "\udcff"], "--oid: not a Preserves value"),
        (["--attenuate", "REF"], "--attenuate adds caveats: give at least one --caveat"),
        (["--attenuate", "REF", "--caveat", SECRET, "--key-file", "KEY"], "takes no --key-file,"),
        (["--attenuate", "REF", "--caveat", SECRET, "--new-key"], "takes no --key-file,"),
        (["--attenuate", "REF", "--caveat", SECRET, "--oid", "x"], "takes no --key-file,"),
        (["--attenuate", "<re", "--caveat", SECRET], "--attenuate: the text ends in the middle"),
        (["--attenuate", "<ref 1>", "--caveat", SECRET], "--attenuate: a sturdyref is <ref {oid:"),
        (["--kye-file", "KEY"], "--key-file"),
    ],
)
def test_a_mistake_is_one_line(
    argv: list[str],
    said: str,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(key_file.parent)
    names = {"KEY": str(key_file), "REF": str(mint("x", KEY))}
    assert run(["mint", *(names.get(word, word) for word in argv)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("clearfunds mint: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert len(captured.err) < 400
    assert [path.name for path in key_file.parent.iterdir()] == [key_file.name]


def test_a_mistaken_reference_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    sig = mint("x", KEY).sig.hex()
    mistaken = f'<ref {{oid: "x" sgi: #x"{sig}"}}>'
    assert run(["mint", "--attenuate", mistaken, "--caveat", SECRET]) == 2
    assert sig not in capsys.readouterr().err


def test_help_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mint", "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--key-file", "--new-key", "--oid", "--attenuate", "--caveat"):
        assert f"{option} " in text
    assert "kept like a password" in text


@pytest.mark.usefixtures("as_a_user")
def test_it_is_a_command_of_its_own(clearfunds: Clearfunds, tmp_path: Path) -> None:
    """As people have it: a key, a reference for all, and from that one for less, in a pipe."""
    file = tmp_path / "relay.key"
    whole = clearfunds("mint", "--key-file", str(file), "--new-key")
    assert (whole.returncode, whole.stderr) == (0, "")
    less = clearfunds("mint", "--attenuate", "-", "--caveat", SECRET, stdin=whole.stdout)
    assert (less.returncode, less.stderr) == (0, "")
    key = bytes.fromhex(file.read_text())
    assert read_sturdyref(less.stdout) == mint("syndicate", key, [decode_text(SECRET)])
