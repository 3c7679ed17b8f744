"""Options for the access control list, and for topics without a rule in it."""

from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from clearfunds.relay import RelaySettings
from clearfunds.transports.acl import Acl, AclFileError

from ._errors import UsageError

_DEFAULTS = RelaySettings()


@Parameter(name="*", group=Group("Authorisation", sort_key=2))
@attrs.frozen
class Authorisation:
    """Topics that users may publish to and read."""

    acl: Annotated[
        Path | None,
        Parameter(
            help="Access control list: a file with the topics that users may publish to and read, "
            "in the format of mosquitto's acl_file. Reloaded at SIGHUP; withdrawn rights end "
            "at once."
        ),
    ] = None
    acl_default: Annotated[
        Literal["allow", "deny", "tenant"] | None,
        Parameter(
            help="Access to topics without a matching rule; tenant: all topics except other "
            "tenants' [default: deny with --acl; without it tenant if clients must "
            "authenticate, otherwise allow]."
        ),
    ] = _DEFAULTS.acl_default

    def list(self) -> Acl | None:
        """Read the file, if there is one.

        Raises:
            UsageError: It cannot be read, or has something else in it.
        """
        if self.acl is None:
            return None
        try:
            return Acl.from_file(self.acl)
        except OSError as error:
            msg = f"{self.acl}: {error.strerror}"
            raise UsageError(msg) from error
        except AclFileError as error:
            raise UsageError(str(error)) from error
