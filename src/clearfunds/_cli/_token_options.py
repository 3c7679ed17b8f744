"""Options for tokens that clients give as passwords."""

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from clearfunds.access import TokenKeyError, Tokens
from clearfunds.sockets import trouble_with_file

from ._errors import CommandFailedError, UsageError
from ._secret_file import check_secret


@Parameter(name="*", group=Group("Listeners", sort_key=1))
@attrs.frozen
class TokenOptions:
    """JSON Web Tokens."""

    jwt_key: Annotated[
        Path | None,
        Parameter(
            help="Key for JSON Web Tokens (JWT) that MQTT clients give as passwords: a file with "
            "the public key (PEM) or the shared secret. A token's sub is the user, and the "
            "connection ends at its exp. Reloaded at SIGHUP."
        ),
    ] = None
    jwt_audience: Annotated[
        str | None, Parameter(help="Required audience (aud) of these tokens [default: any].")
    ] = None

    def read(self) -> Tokens | None:
        """Read the key, if there is one.

        Raises:
            UsageError: It cannot be read, is none, or is a secret that others can read; or an
                audience is given without a key.
            CommandFailedError: A package for tokens is not installed.
        """
        file = self.jwt_key
        if file is None:
            if self.jwt_audience is not None:
                raise UsageError("--jwt-audience needs --jwt-key FILE")
            return None
        try:
            tokens = Tokens.from_file(file, self.jwt_audience)
            if not tokens.is_public:
                check_secret(file)
        except OSError as error:
            raise UsageError(trouble_with_file(file, error)) from error
        except TokenKeyError as error:
            msg = f"{file}: {error}"
            raise UsageError(msg) from error
        except ModuleNotFoundError as error:
            msg = (
                f'tokens need {error.name}, which is not installed: pip install "clearfunds[auth]"'
            )
            raise CommandFailedError(msg) from error
        return tokens
