"""The clients that every test here is run with."""

import pytest

from tests.clients.peers import Kind, built


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    """Build a client's program; a test chooses by `parametrize` of which (see `parameters`)."""
    found: Kind = request.param
    if (missing := built(found.language)) is not None:
        why = " ".join(missing.split())[:400]
        pytest.skip(f"the packages of {found.language.name} cannot be had: {why}")
    return found
