"""What a client says of a server with which it has not come to terms."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from clearfunds.sockets import Certificates, TlsSocket, trouble
from tests.transports.certificates import Papers, papers_in


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_in(tmp_path_factory.mktemp("papers"))


def fall_out(ours: TlsSocket, theirs: TlsSocket) -> None:
    """Shake hands until the client hears that it comes to nothing."""
    while True:
        if not ours.shake_hands():
            theirs.shake_hands()
            continue
        with suppress(ssl.SSLError):
            theirs.shake_hands()
        ours.recv(4096)  # TLS 1.3 says it after the handshake


def told(server: Certificates, client: Certificates, hostname: str = "localhost") -> str:
    """Let a client and a server fall out; return what the client says."""
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setblocking(False)
    theirs = TlsSocket(near, server.for_server())
    ours = TlsSocket(far, client.for_client(), server_side=False, server_hostname=hostname)
    try:
        with pytest.raises(ssl.SSLError) as caught:
            fall_out(ours, theirs)
    finally:
        ours.close()
        theirs.close()
    return trouble(caught.value)


def test_a_certificate_of_another_time(papers: Papers) -> None:
    leaf = papers.authority.issue_cert(
        "localhost",
        not_before=datetime(2001, 1, 1, tzinfo=UTC),
        not_after=datetime(2002, 1, 1, tzinfo=UTC),
    )
    chain = papers.folder / "old.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(chain)
    said = told(Certificates(chain=chain), papers.for_client())
    assert said.startswith("its certificate is not valid now (certificate verify failed: ")
    assert "expired" in said


def test_a_certificate_of_another_name_and_of_nobody_who_is_known(
    papers: Papers, tmp_path: Path
) -> None:
    for host in ("example.com", "127.0.0.9"):
        said = told(papers.for_server(), papers.for_client(), host)
        assert said.startswith("its certificate is for another name (")
        assert host in said
    said = told(papers.for_server(), papers_in(tmp_path / "other").for_client())
    assert said.startswith("its certificate is not trusted (")


def test_a_client_that_is_not_believed(papers: Papers, tmp_path: Path) -> None:
    stranger = papers_in(tmp_path / "other").for_client("stranger")
    client = attrs.evolve(stranger, trusted=papers.trusted)
    said = told(papers.for_server(asks=True), client)
    assert said.startswith("it does not trust the client's certificate (")
    assert "may require a client's certificate" in told(
        papers.for_server(asks=True), papers.for_client()
    )


def test_what_nothing_else_is_known_of() -> None:
    error = ssl.SSLError(1, "[SSL: SOMETHING_NEW] something new (_ssl.c:1)")
    error.reason = "SOMETHING_NEW"
    assert trouble(error) == "TLS failed (something new)"
