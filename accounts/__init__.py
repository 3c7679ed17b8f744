"""Who owes what: accounts, loans, turns, limits and the ledger. No I/O.

Every event is on some account from the moment it is queued until its holder is done with it; what
is sent while handling an event is charged to that event's account; readers wait for clear funds
before they read more.
"""

from ._account import Account as Account
from ._collector import DebtCollector as DebtCollector
from ._confirm import Confirm as Confirm
from ._credit_flow import CREDIT_2015 as CREDIT_2015
from ._credit_flow import DEFAULT_CREDIT as DEFAULT_CREDIT
from ._credit_flow import READER_STATE_CHANGE_SECONDS as READER_STATE_CHANGE_SECONDS
from ._credit_flow import STATE_CHANGE_SECONDS as STATE_CHANGE_SECONDS
from ._credit_flow import STORE_CREDIT as STORE_CREDIT
from ._credit_flow import Credit as Credit
from ._credit_flow import CreditBlock as CreditBlock
from ._credit_flow import CreditFlow as CreditFlow
from ._credit_flow import CreditFlowStatistics as CreditFlowStatistics
from ._errors import AccountError as AccountError
from ._errors import AuditError as AuditError
from ._errors import ClosedAccountError as ClosedAccountError
from ._errors import NotALoanError as NotALoanError
from ._errors import QuotaExceededError as QuotaExceededError
from ._errors import SelfWaitError as SelfWaitError
from ._errors import SettledError as SettledError
from ._errors import TooManyDeliveriesError as TooManyDeliveriesError
from ._holder import DEFAULT_PATIENCE as DEFAULT_PATIENCE
from ._holder import JOIN_BYTES as JOIN_BYTES
from ._holder import Holder as Holder
from ._holder import LoanQueue as LoanQueue
from ._holder import Recipient as Recipient
from ._holder import StuckPolicy as StuckPolicy
from ._ledger import Ledger as Ledger
from ._limit import DEFAULT_LIMIT_BYTES as DEFAULT_LIMIT_BYTES
from ._limit import DEFAULT_LIMIT_ITEMS as DEFAULT_LIMIT_ITEMS
from ._limit import NO_LIMIT as NO_LIMIT
from ._limit import Limit as Limit
from ._loan import LoanedItem as LoanedItem
from ._measure import measure as measure
from ._outcome import Outcome as Outcome
from ._patience import Stuck as Stuck
from ._patience import overdue as overdue
from ._patience import watch_patience as watch_patience
from ._slow_waits import DEFAULT_SLOW_WAIT as DEFAULT_SLOW_WAIT
from ._slow_waits import watch_slow_waits as watch_slow_waits
from ._standing import DEFAULT_STANDING_BYTES as DEFAULT_STANDING_BYTES
from ._standing import DEFAULT_STANDING_ITEMS as DEFAULT_STANDING_ITEMS
from ._standing import Quota as Quota
from ._standing import Standing as Standing
from ._statistics import AccountStatistics as AccountStatistics
from ._statistics import HolderStatistics as HolderStatistics
from ._statistics import Holding as Holding
from ._statistics import LedgerStatistics as LedgerStatistics
from ._trace import Move as Move
from ._trace import Settlement as Settlement
from ._trace import StillHeld as StillHeld
from ._trace import Trace as Trace
from ._trace import TracedLoan as TracedLoan
from ._trace import TracedSum as TracedSum
from ._trace import TracedTurn as TracedTurn
from ._trace import TracedWait as TracedWait
from ._tracer import DEFAULT_SHOWN_LOANS as DEFAULT_SHOWN_LOANS
from ._tracer import DEFAULT_TRACED_LOANS as DEFAULT_TRACED_LOANS
from ._tracer import Tracer as Tracer
from ._tracer import label_of as label_of
from ._turn import Router as Router
from ._turn import Turn as Turn
from ._turn import commit_run as commit_run
from ._waits_for import RING_SECONDS as RING_SECONDS
from ._waits_for import Ring as Ring
from ._waits_for import Wait as Wait
from ._waits_for import WaitedOn as WaitedOn
from ._waits_for import rings as rings
from ._waits_for import wait_for_graph as wait_for_graph
