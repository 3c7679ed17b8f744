"""Authorisation: who may publish to which topics, and who may read them. No I/O but for the file.

`Acl` is the file as mosquitto has it, `Authority` what a relay decides by it, and `Rights` what one
peer may. Each protocol asks the peer's `Rights`.
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
