"""Who may publish and read what: the access control list, and what holds where it says nothing."""

from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from clearfunds.transports import RelaySettings
from clearfunds.transports.acl import Acl, AclFileError

from ._errors import UsageError

_DEFAULTS = RelaySettings()


@Parameter(name="*", group=Group("Authorisation", sort_key=2))
@attrs.frozen
class Authorisation:
    """What users may publish and read."""

    acl: Annotated[
        Path | None,
        Parameter(
            help="File that says which topics users may publish to and read, in the format of "
            "mosquitto's acl_file. Read again at SIGHUP: what is no longer allowed ends at once."
        ),
    ] = None
    acl_default: Annotated[
        Literal["allow", "deny", "tenant"] | None,
        Parameter(
            help="What holds for topics that no rule is about; tenant: what is not of another "
            "tenant is allowed [default: deny with --acl; without it tenant if clients have to "
            "prove who they are, otherwise allow]."
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
