"""RabbitMQ's credit flow for a whole relay: the alternative to debt and limits."""

from __future__ import annotations

from ._collector import CreditCollector as CreditCollector
from ._credit_flow import CREDIT_2015 as CREDIT_2015
from ._credit_flow import DEFAULT_CREDIT as DEFAULT_CREDIT
from ._credit_flow import READER_STATE_CHANGE_SECONDS as READER_STATE_CHANGE_SECONDS
from ._credit_flow import STATE_CHANGE_SECONDS as STATE_CHANGE_SECONDS
from ._credit_flow import STORE_CREDIT as STORE_CREDIT
from ._credit_flow import Credit as Credit
from ._credit_flow import CreditBlock as CreditBlock
from ._credit_flow import CreditFlow as CreditFlow
from ._credit_flow import CreditFlowStatistics as CreditFlowStatistics
from ._recorder import hearing as hearing
from ._relay import serve_on_credit as serve_on_credit
from ._relay import use_credit as use_credit
from ._scheme import CreditScheme as CreditScheme
from ._settings import STORE_CREDIT_TODAY as STORE_CREDIT_TODAY
from ._settings import CreditSettings as CreditSettings
from ._stations import CreditQueue as CreditQueue
from ._stations import CreditSubscription as CreditSubscription
from ._statistics import CreditStatistics as CreditStatistics
from ._statistics import KindStatistics as KindStatistics
from ._statistics import ProcessStatistics as ProcessStatistics
