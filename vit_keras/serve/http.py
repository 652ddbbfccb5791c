"""uvicorn as the server of one app, with deadlines for heads and answers, errors in JSON, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from .limits import Limits

__all__ = ["MAX_CONNECTIONS", "RETRY", "Protocol", "Server"]

MAX_CONNECTIONS = 512
"""For one more, one that waits for a request is closed."""
RETRY = {"Retry-After": "1"}
"""Headers of an answer to what may be asked again."""
_MAX_HEAD = 1 << 14  # bytes of the request line and the headers
_LINGER = 2.0  # seconds for a client to end sending what is not read
_LAST_CALL = 0.5  # seconds for what is on its way when the server stops


class Protocol(H11Protocol):
    """One connection. It has a deadline for the client to take an answer, and to send the head of the next request.

    The time begins with the connection or with the answer: no byte prolongs it. Where there are too many connections,
    one that waits for a request is closed for a new one: the oldest of the address that has the most.
    """

    limits: Limits = Limits()
    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait(self.timeout_keep_alive)
        by_address: dict[str, list[Protocol]] = {}
        for each in self.connections:
            if isinstance(each, Protocol) and not each.transport.is_closing():
                by_address.setdefault(each.address, []).append(each)
        mine, most = by_address[self.address], self.limits.connections_of(self.address)
        if len(mine) > most:
            message = f"Too many connections from {self.address} (limit: {most}). Use the open ones."
            self._make_room(mine, 429, message)
        elif sum(map(len, by_address.values())) > MAX_CONNECTIONS:
            message = f"Too many connections (limit: {MAX_CONNECTIONS}). Try again later."
            self._make_room(max(by_address.values(), key=len), 503, message)

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.client[0] if self.client else ""

    def _make_room(self, others: Sequence[Protocol], status: int, message: str) -> None:
        """Close the oldest of some connections that waits for a request; if there is none, refuse this one."""
        idle = [each for each in others if each is not self and not each._is_answering]
        if idle:
            min(idle, key=lambda each: each._since).transport.close()
        else:
            self._refuse(status, message, RETRY)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """Answer a client that has sent all it wants to send, rather than close."""
        if not self._is_answering:
            return False
        if self.cycle.more_body:
            self.conn.receive_data(b"")  # h11 finds what is missing
            self.handle_events()
        self.cycle.keep_alive = False
        return True

    def on_response_complete(self) -> None:
        unread = self.conn.their_state is h11.SEND_BODY
        self._wait(min(_LINGER, self.timeout_keep_alive) if unread else self.timeout_keep_alive)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP. uvicorn calls it while it handles h11's error, which knows the status."""
        error = sys.exc_info()[1]
        self._refuse(getattr(error, "error_status_hint", 400), f"The request cannot be read: {error or msg}.")

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():  # the client does not take what it asked for
            self.transport.abort()
        elif self._is_answering:
            pass  # the app has its own deadlines
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, f"The head of the request did not come within {self.timeout_keep_alive:g} seconds.")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer without the app, and close."""
        if self._is_answering:
            self.cycle.disconnected = True  # what the app may still send is for nobody
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": message}).encode()
            fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            fields = [*self.server_state.default_headers, *fields.items(), *(headers or {}).items()]
            head = h11.Response(status_code=status, headers=fields, reason=STATUS_PHRASES[status])
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


class Server(uvicorn.Server):
    """A server of one app.

    Args:
        app: The ASGI app. Its `stopping` is set when the server begins to end; its answers then close connections.
        listener: A socket that listens.
        timeout: Seconds for a client to send the head of a request, and to take the answer; and for everything to end
            when the server stops.
        limits: How many connections an address may have.
        on_start: Called once signals are handled and connections accepted.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        timeout: float,
        on_start: Callable[[], None],
        limits: Limits | None = None,
    ):
        config = uvicorn.Config(
            app,
            http=type("LimitedProtocol", (Protocol,), {"limits": limits or Limits()}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,  # anybody could say to be another client
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            h11_max_incomplete_event_size=_MAX_HEAD,
            timeout_keep_alive=timeout,  # pyright: ignore[reportArgumentType]  (it takes fractions too)
            timeout_graceful_shutdown=timeout,  # pyright: ignore[reportArgumentType]
        )
        super().__init__(config)
        self._app, self._listener, self._on_start = app, listener, on_start

    def unsent(self) -> int:
        """Return the bytes of answers that clients have not taken yet."""
        return sum(each.transport.get_write_buffer_size() for each in self.server_state.connections)

    def run(self) -> None:
        """Serve until `should_exit` is set or, in the main thread, a signal comes."""
        asyncio.run(self.serve([self._listener]))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer the requests that have come or are on their way, and close."""
        self._app.stopping = True
        for server in self.servers:
            server.close()
        if self.server_state.connections:
            await asyncio.sleep(_LAST_CALL)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down gracefully at the first signal; a second one has its original effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Any] = {}

        def restore(*_):
            self.should_exit = True
            for number, before in handlers.items():
                signal.signal(number, before)

        handlers.update((number, signal.signal(number, restore)) for number in HANDLED_SIGNALS)
        try:
            yield
        finally:
            restore()
