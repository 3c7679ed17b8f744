"""The options of a relay: its settings, as the command line, the environment and files have them.

Names, defaults, ranges and texts are those of `RelaySettings`. Here are only the groups of
`--help`, the forms in which values are written, and the readers of files.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
from cyclopts import Group, Parameter
from cyclopts.validators import Number

from clearfunds.access import AccountLimit, AccountRate, BearerTokens, Tenant, TokenFileError
from clearfunds.access._tenants import TenantRules
from clearfunds.access.acl import Acl, AclFileError
from clearfunds.relay import RelaySettings
from clearfunds.relay._persistence import REPLICATED
from clearfunds.relay._settings import (
    AuthorisationSettings,
    ClusteringSettings,
    PagesSettings,
    RunningSettings,
)
from clearfunds.sockets import trouble_with_file
from clearfunds.transports import PublicationPolicy, SubscriptionPolicy, TopicAccount
from clearfunds.transports import _units as units
from clearfunds.transports._settings import (
    AmqpSettings,
    DebtSettings,
    ListenerSettings,
    PatienceSettings,
    PeerSettings,
    PersistenceSettings,
    SyndicateSettings,
)

from . import _types as types
from ._account_limit import AccountLimits
from ._errors import UsageError
from ._key_file import read_key
from ._password_file import read_passwords
from ._publication_policy import PublicationPolicies
from ._secret_file import check_secret
from ._subscription_policy import SubscriptionPolicies
from ._tenant_options import AccountRates, Tenants
from ._topic_account import TopicAccounts

log = logging.getLogger("clearfunds.relay")

DEFAULTS: Final = RelaySettings()

RUNNING: Final = Group("Running", sort_key=7)

_GROUPS: Final[dict[type[attrs.AttrsInstance], Group]] = {
    ListenerSettings: Group("Listeners", sort_key=1),
    PagesSettings: Group("Pages", sort_key=1.5),
    AuthorisationSettings: Group("Authorisation", sort_key=2),
    DebtSettings: Group("Debt", sort_key=2),
    PatienceSettings: Group("Patience", sort_key=3),
    PeerSettings: Group("Peers", sort_key=4),
    PersistenceSettings: Group("Persistence", sort_key=5),
    AmqpSettings: Group("AMQP", sort_key=5.5),
    SyndicateSettings: Group("Syndicate", sort_key=6),
    ClusteringSettings: Group("Cluster", sort_key=6.5),
    RunningSettings: RUNNING,
}

_FORMS: Final[dict[Any, Any]] = {
    units.Count: types.Count,
    units.Count | None: types.OptionalCount,
    units.Size: types.Size,
    units.Size | None: types.OptionalSize,
    units.Seconds: types.Seconds,
    units.Seconds | None: types.OptionalSeconds,
    units.ShareOrSize | None: types.OptionalShareOrSize,
    units.Text | None: types.OptionalText,
    tuple[str, ...]: Annotated[tuple[str, ...], Parameter(negative=())],
    tuple[AccountLimit, ...]: AccountLimits,
    tuple[AccountRate, ...]: AccountRates,
    tuple[Tenant, ...]: Tenants,
    tuple[SubscriptionPolicy, ...]: SubscriptionPolicies,
    tuple[PublicationPolicy, ...]: PublicationPolicies,
    tuple[TopicAccount, ...]: TopicAccounts,
}


def _bearer_tokens(file: Path) -> BearerTokens:
    check_secret(file)
    try:
        return BearerTokens.from_file(file)
    except TokenFileError as error:
        raise UsageError(str(error)) from error


def _acl(file: Path) -> Acl:
    try:
        return Acl.from_file(file)
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
    except AclFileError as error:
        raise UsageError(str(error)) from error


_READERS: Final[dict[str, Callable[[Path], object]]] = {
    "passwords": read_passwords,
    "acl": _acl,
    "http_token": _bearer_tokens,
    "http_password": read_passwords,
    "sturdy_key": lambda file: read_key(file, log.warning),
}
"""Settings that are read from a file, which the option names."""


def _as_option(field: "attrs.Attribute[Any]", group: Group) -> "attrs.Attribute[Any]":
    form = Path | None if field.name in _READERS else _FORMS.get(field.type, field.type)
    said: dict[str, Any] = {"group": group}
    if field.default is False:
        said["negative"] = ()  # --no-NAME is for what is on by default
    if field.default is False or field.default == ():
        said["show_default"] = False
    if field.name == "sturdy_key":  # A key itself would stand in the list of processes.
        said["name"] = "--sturdy-key-file"
    if isinstance(field.validator, units.Between):
        said["validator"] = Number(gte=field.validator.least, lte=field.validator.most)
    form = Annotated[form, Parameter(**said)]
    return field.evolve(type=form, validator=None, converter=None)


def _as_options(_: type[Any], fields: "list[attrs.Attribute[Any]]") -> "list[attrs.Attribute[Any]]":
    by_name = {field.name: field for field in fields}
    return [
        _as_option(by_name[field.name], group)
        for settings, group in _GROUPS.items()
        for field in attrs.fields(settings)
    ]


@Parameter(name="*")
@attrs.frozen(kw_only=True, slots=False, field_transformer=_as_options)
class Options(RelaySettings):
    """The settings of a relay that have an option; instead of what is in a file, the file."""

    def settings(self, *, has_name: bool = False, **others: Any) -> RelaySettings:
        """Read the files; return the settings, with `others`, which are made of several options.

        Args:
            has_name: The relay has a name without --cluster, too.
            others: Settings by name.

        Raises:
            UsageError: A file cannot be used, or an option needs another one.
            ValueError: A value is out of its range.
        """
        self._check(has_name=has_name)
        values = attrs.asdict(self, recurse=False)
        for name, read in _READERS.items():
            if values[name] is not None:
                values[name] = read(values[name])
        return RelaySettings(**values, **others)

    def _check(self, *, has_name: bool) -> None:
        if self.store is None and self.disk_limit not in (None, DEFAULTS.disk_limit):
            raise UsageError(
                "--disk-limit needs --store DIRECTORY; without a store, give --kept-limit"
            )
        for amount in ("items", "bytes"):
            self._check_limit(f"limit_{amount}", f"server_limit_{amount}")
        for tenant in TenantRules(self.tenant).tenants.values():
            _check_users(tenant)
        for name in ("http_token", "http_password", "http_host", "http_open"):
            if getattr(self, name) and self.http is None:
                msg = f"--{name.replace('_', '-')} needs --http HOST:PORT"
                raise UsageError(msg)
        if self.store_replicas is not None and self.store != REPLICATED:
            raise UsageError("--store-replicas needs --store nats")
        needing = [
            option
            for option, is_given in (
                ("--name", self.name is not None and not has_name),
                ("--cluster-name", self.cluster_name != DEFAULTS.cluster_name),
                ("--store nats", self.store == REPLICATED),
            )
            if is_given
        ]
        if self.cluster is None and needing:
            option = needing[0]
            msg = f"{option} needs --cluster nats://HOST:PORT"
            raise UsageError(msg)

    def _check_limit(self, name: str, above: str) -> None:
        """Check that a limit of one connection is not above that of all, if both are chosen."""
        one, together = getattr(self, name), getattr(self, above)
        if None in (one, together) or one == getattr(DEFAULTS, name) or one <= together:
            return
        option, other = (f"--{each.replace('_', '-')}" for each in (name, above))
        msg = f"{option} {one} is above {other} {together}, and never reached: lower it"
        raise UsageError(msg)


def _check_users(tenant: Tenant) -> None:
    """Check that no limit of one user is above that of all. (By hand, a relay takes any.)

    Raises:
        UsageError: One is.
    """
    for of_all in ("items", "bytes", "rate", "rate_bytes"):
        one, together = getattr(tenant, f"user_{of_all}"), getattr(tenant, of_all)
        if one is not None and together is not None and one > together:
            msg = (
                f"tenant {tenant.name}: user_{of_all} {one:g} is above {of_all} {together:g}, and "
                "never reached: lower it"
            )
            raise UsageError(msg)
