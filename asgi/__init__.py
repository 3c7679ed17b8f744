"""Backpressure for ASGI programs: WebSockets, server-sent events, and the pages, in a few lines.

For Starlette, FastAPI and everything else that speaks ASGI, under uvicorn and hypercorn, with
asyncio and with Trio. Needs anyio and h11, of the extra `asgi`.
"""

from ..streams import Feed as Feed
from ..streams import Hub as Hub
from ._event_stream import EventStream as EventStream
from ._lifespan import lifespan as lifespan
from ._pages import debt_pages as debt_pages
from ._websocket import serve_websocket as serve_websocket
