"""HTTP/1.1 over asyncio: the bytes are h11's; limits of time and the orderly end are here.

Every wait has an end: for the first byte of a request, its head, its body, and for the client to take the answer. A
server that stops answers whatever it has accepted, and then closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import http
import json
import traceback
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__all__ = ["Late", "Refused", "Request", "Response", "Server"]

Late = asyncio.exceptions.TimeoutError
"""What `asyncio.wait_for` raises: `TimeoutError`, from Python 3.11 on."""

_CHUNK = 1 << 16
_MAX_HEAD = 1 << 14  # bytes of the request line and the headers
_LINGER = 2.0  # seconds for a client to end sending what is not read
_LAST_CALL = 0.5  # seconds for what is on its way when the server stops


class Refused(Exception):
    """A request that gets an error as its answer.

    Args:
        status: The HTTP status.
        message: What was received, and what would work.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.response = Response.json({"error": message}, status, headers)


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer.

    Attributes:
        body: Its content.
        content_type: The media type of it.
        status: The HTTP status.
        headers: Further headers.
    """

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """Return an answer in JSON.

        Example:
            >>> Response.json({"ready": True}).body
            b'{"ready":true}'
        """
        return cls(json.dumps(value, separators=(",", ":")).encode(), status=status, headers=headers or {})


@dataclasses.dataclass(frozen=True)
class Request:
    """The head of a request; `body` reads the rest.

    Attributes:
        method: Such as `"GET"`.
        path: Without the query, decoded.
        query: The last value of each name.
        headers: By their names in small letters.
        client: The address of the client.
        body: Reads the body, of at most so many bytes.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    client: str
    body: Callable[[int], Awaitable[bytes]]


class Server:
    """A server of one function.

    Args:
        answer: Returns the answer to a request, and raises nothing.
        timeout: Seconds for a client to send the head of a request, to send its body, and to take the answer; and for
            everything to end when the server stops.
        idle: Seconds that a connection may stay open without a request.
        max_connections: More connections are closed at once, with the status 503.
    """

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Response]],
        *,
        timeout: float = 30.0,
        idle: float = 30.0,
        max_connections: int = 512,
    ):
        self.answer, self.timeout, self.idle, self.max_connections = answer, timeout, idle, max_connections
        self.stopping = False
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen.

        Args:
            host: Name or address of a network interface.
            port: Number of the port; 0 for any that is free.

        Returns:
            The address and the port.
        """
        self._server = await asyncio.start_server(self._connected, host, port, limit=_CHUNK, backlog=1024)
        return self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Accept no more connections, answer the requests that have come, and close."""
        self.stopping = True
        await asyncio.sleep(0.05)  # who is in the queue of the operating system is accepted
        self._server.close()
        if self.connections:
            await asyncio.sleep(_LAST_CALL)
        for connection in self.connections:
            if connection.is_idle:
                connection.task.cancel()
        if self.connections:
            await asyncio.wait([each.task for each in self.connections], timeout=self.timeout)
        for connection in self.connections:
            connection.task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        if len(self.connections) >= self.max_connections:
            await connection.refuse(f"There are {len(self.connections)} connections, as many as may be. Try again.")
            return
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)


class _Connection:
    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        import h11

        self.server, self.reader, self.writer = server, reader, writer
        self.h11 = h11
        self.state = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self.task = asyncio.current_task()
        self.is_idle = False
        self.head_only = False  # whether the answer has no body
        writer.transport.set_write_buffer_limits(0)  # drain() waits until the client has taken everything

    async def run(self) -> None:
        """Answer one request after the other."""
        try:
            while await self._exchange():
                self.state.start_next_cycle()
            self.writer.close()
        except (Late, asyncio.CancelledError, OSError):
            self.writer.transport.abort()
        except Exception:
            traceback.print_exc()
            self.writer.transport.abort()

    async def refuse(self, message: str) -> None:
        """Answer nothing but an error."""
        with contextlib.suppress(Late, OSError):
            await self._send(Refused(503, message, {"Retry-After": "1"}).response)
        self.writer.close()

    async def _exchange(self) -> bool:
        """Answer a request; return whether another may follow."""
        if not self.state.trailing_data[0]:
            self.is_idle = True
            data = await asyncio.wait_for(self.reader.read(_CHUNK), self.server.idle)
            self.is_idle = False
            if not data:
                return False
            self.state.receive_data(data)
        try:
            head = await asyncio.wait_for(self._event(), self.server.timeout)
            if type(head) is self.h11.ConnectionClosed:
                return False
            self.head_only = head.method == b"HEAD"
            request = self._request(head)
        except Late:
            message = f"The head of the request did not come within {self.server.timeout:g} seconds."
            return await self._send(Refused(408, message).response)
        except self.h11.RemoteProtocolError as error:
            return await self._send(Refused(error.error_status_hint, f"This is not HTTP/1.1: {error}.").response)
        except ValueError as error:
            return await self._send(Refused(400, f"The address of the request cannot be read: {error}.").response)
        return await self._send(await self.server.answer(request))

    async def _event(self) -> Any:
        """Return the next event that h11 finds in what the client sends."""
        while (event := self.state.next_event()) is self.h11.NEED_DATA:
            if self.state.they_are_waiting_for_100_continue:
                self.writer.write(self.state.send(self.h11.InformationalResponse(status_code=100, headers=[])))
            self.state.receive_data(await self.reader.read(_CHUNK))
        return event

    def _request(self, head: Any) -> Request:
        address = urllib.parse.urlsplit(head.target.decode("ascii"))
        client = self.writer.get_extra_info("peername")
        return Request(
            method=head.method.decode("ascii"),
            path=urllib.parse.unquote(address.path),
            query=dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True)),
            headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
            client=client[0] if isinstance(client, tuple) else "",
            body=self._body,
        )

    async def _body(self, limit: int) -> bytes:
        """Return the body of the request; raise `Refused` if it is too large, too slow or not complete."""
        body = bytearray()

        async def read():
            while type(event := await self._event()) is self.h11.Data:
                body.extend(event.data)
                if len(body) > limit:
                    raise Refused(413, f"The body has more than {limit:,} bytes. Send a smaller one.")

        try:
            await asyncio.wait_for(read(), self.server.timeout)
        except Late:
            message = f"{len(body):,} bytes of the body came within {self.server.timeout:g} seconds. Send it faster."
            raise Refused(408, message) from None
        except self.h11.RemoteProtocolError as error:
            raise Refused(400, f"The body is not complete after {len(body):,} bytes: {error}.") from None
        return bytes(body)

    async def _send(self, response: Response) -> bool:
        """Send an answer; return whether the connection may go on."""
        h11, state = self.h11, self.state
        if state.their_state is h11.SEND_BODY and not state.they_are_waiting_for_100_continue:
            with contextlib.suppress(h11.RemoteProtocolError):
                state.next_event()  # the end of a request without a body
        unread = state.their_state in (h11.SEND_BODY, h11.ERROR)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Date": email.utils.formatdate(usegmt=True),
            "X-Content-Type-Options": "nosniff",
            **response.headers,
        }
        if unread or self.server.stopping:
            headers["Connection"] = "close"
        reason = http.HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, reason=reason, headers=list(headers.items()))
        parts = [state.send(head), b"" if self.head_only else state.send(h11.Data(data=response.body))]
        self.writer.write(b"".join([*parts, state.send(h11.EndOfMessage())]))
        await asyncio.wait_for(self.writer.drain(), self.server.timeout)
        if unread:
            await self._linger()
        return state.our_state is h11.DONE and state.their_state is h11.DONE

    async def _linger(self) -> None:
        """Take for a while what the client still sends: a connection closed at once would cost it the answer."""

        async def read():
            while await self.reader.read(_CHUNK):
                pass

        with contextlib.suppress(Late, OSError):
            self.writer.write_eof()
            await asyncio.wait_for(read(), _LINGER)
