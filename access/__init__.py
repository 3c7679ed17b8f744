"""Access: who may connect, what users may do, and which account pays for them.

Users prove themselves with passwords or tokens. Tenants and the ACL say what they may publish and
read; the tree of accounts says what they may owe. Admission bounds connections, and guesses of
passwords. Nothing here does I/O but reading files that the command line names.
"""

from ._account_limits import AccountLimit as AccountLimit
from ._account_limits import AccountLimits as AccountLimits
from ._account_limits import AccountRate as AccountRate
from ._bearer_tokens import BearerTokens as BearerTokens
from ._bearer_tokens import TokenFileError as TokenFileError
from ._passwords import Authenticator as Authenticator
from ._passwords import PasswordFileError as PasswordFileError
from ._passwords import Passwords as Passwords
from ._tenants import Tenant as Tenant
from ._tokens import TokenKeyError as TokenKeyError
from ._tokens import Tokens as Tokens
