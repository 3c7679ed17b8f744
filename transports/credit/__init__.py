"""RabbitMQ's credit flow for a whole relay: the alternative to debt and limits."""

from __future__ import annotations

from ._collector import CreditCollector as CreditCollector
from ._collector import CreditPage as CreditPage
from ._recorder import hearing as hearing
from ._scheme import CreditScheme as CreditScheme
from ._settings import STORE_CREDIT_TODAY as STORE_CREDIT_TODAY
from ._settings import CreditSettings as CreditSettings
from ._stations import CreditQueue as CreditQueue
from ._stations import CreditSubscription as CreditSubscription
from ._statistics import CreditStatistics as CreditStatistics
from ._statistics import KindStatistics as KindStatistics
from ._statistics import ProcessStatistics as ProcessStatistics
from ._use import use_credit as use_credit
