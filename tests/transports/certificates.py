"""Certificates that were made for a test, and the files they are in."""

from __future__ import annotations

from pathlib import Path

import attrs
import trustme

from clearfunds.sockets import Certificates


@attrs.frozen
class Papers:
    """A certificate authority that some believe, and files of what it has signed."""

    authority: trustme.CA
    folder: Path

    @property
    def trusted(self) -> Path:
        """The authority's own certificate."""
        path = self.folder / "authority.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    def issue(self, name: str, *hosts: str, common_name: str | None = None) -> Certificates:
        """Write a certificate and its key into files of that name."""
        leaf = self.authority.issue_cert(*hosts, common_name=common_name)
        chain, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(key)
        key.chmod(0o600)
        return Certificates(chain=chain, key=key)

    def for_server(self, *, asks: bool = False) -> Certificates:
        """Issue what a server on this machine shows; whether it asks clients for theirs."""
        issued = self.issue("server", "localhost", "127.0.0.1", "::1", common_name="localhost")
        return attrs.evolve(issued, trusted=self.trusted if asks else None)

    def for_client(self, name: str | None = None) -> Certificates:
        """Issue what a client of that name shows; None: it shows nothing. It believes all this."""
        if name is None:
            return Certificates(trusted=self.trusted)
        issued = self.issue(name, f"{name}@example.com", common_name=name)
        return attrs.evolve(issued, trusted=self.trusted)


def papers_in(folder: Path) -> Papers:
    """Found an authority."""
    folder.mkdir(exist_ok=True)
    return Papers(trustme.CA(), folder)
