"""Authorisation: which users may publish to which topics, and read them. No I/O except the file.

`Acl` is the file in mosquitto's format, `Authority` a relay's rules, and `Rights` the permissions
of one peer. Each protocol asks the peer's `Rights`.
"""

from ._acl import Acl as Acl
from ._authority import ACL_DEFAULTS as ACL_DEFAULTS
from ._authority import AclDefault as AclDefault
from ._authority import Authority as Authority
from ._authority import Rights as Rights
from ._denied import Denied as Denied
from ._rules import Access as Access
from ._rules import AclFileError as AclFileError
from ._rules import AclRules as AclRules
from ._rules import Rule as Rule
from ._rules import parse_acl as parse_acl
