"""The relay's pages: a small HTTP/1.1 server, metrics, health and the ledger.

Needs h11, of the extra `relay`; only the relay and the command line import this folder.
"""

from ._about import ClientFacts as ClientFacts
from ._about import Clients as Clients
from ._access import Access as Access
from ._messages import Action as Action
from ._messages import Handler as Handler
from ._messages import Operator as Operator
from ._messages import Request as Request
from ._messages import Response as Response
from ._pages import Pages as Pages
from ._pages import serve_pages as serve_pages
from ._persistence_collector import PersistenceCollector as PersistenceCollector
from ._relay_collector import RelayCollector as RelayCollector
from ._relay_collector import TransportCounts as TransportCounts
from ._server import HttpLimits as HttpLimits
from ._server import serve_http as serve_http
from ._unsent_collector import UnsentCollector as UnsentCollector
