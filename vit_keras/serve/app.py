"""The web server around a model: a page, `/predict` and `/health`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message

from .._internal import html_page
from .._internal.plain_json import as_json
from .._internal.validate import positive_integer
from .model import Refused, ServedModel

__all__ = ["App", "Limits", "Server"]

_FOOTER = """<p>The image is sent to this server only, and is not kept.</p>
    <p>For programs: <code>curl --data-binary @cat.jpg <span id="address"></span></code></p>"""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on what clients may ask; see `vit_keras.serve.serve`."""

    workers: int
    timeout: int
    max_mb: int
    max_megapixels: int
    max_images: int
    max_pending: int

    def __post_init__(self):
        for name, value in vars(self).items():
            positive_integer(value, name)


class App:
    """The answers to requests; `asgi` is the application."""

    def __init__(self, model: ServedModel, limits: Limits):
        self.model: ServedModel = model
        self.limits: Limits = limits
        self.pending: int = 0
        self.pool: ThreadPoolExecutor = ThreadPoolExecutor(limits.workers, thread_name_prefix="vit-keras-serve")
        self.asgi: Starlette = Starlette(
            routes=[
                Route("/", self.page),
                Route("/health", self.health),
                Route("/predict", self.predict, methods=["POST"]),
            ],
            exception_handlers=dict.fromkeys((Refused, HTTPException, ClientDisconnect, Exception), self._error),
            lifespan=self._lifespan,
        )

    async def page(self, request: Request) -> Response:
        """Return the web page."""
        page = html_page.picture_page(self.model.name, _FOOTER, connect="'self'")
        return HTMLResponse(page, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    async def health(self, request: Request) -> Response:
        """Return that the server takes requests: at its end, it does not listen."""
        return _json({"ready": True, "model": self.model.name, "pending": self.pending})

    async def predict(self, request: Request) -> Response:
        """Return the answer to the image in a request, or to each image in a form."""
        unknown = set(request.query_params) - {"top", "attention"}
        if unknown:
            raise Refused(400, f"/predict takes the parameters top and attention. Received: {min(unknown)[:40]!r}")
        top, attention = _number(request, "top", 5, 1, 100_000), _number(request, "attention", 0, 0, 1)
        if self.pending >= self.limits.max_pending:
            raise Refused(503, f"The server is busy: {self.pending} requests wait, the most it takes. Try again.")
        self.pending += 1
        try:
            answers = await asyncio.wait_for(self._answers(request, top, bool(attention)), self.limits.timeout)
        except TimeoutError:
            message = f"The request was not sent and computed in {self.limits.timeout} seconds. Try again."
            raise Refused(503, message) from None
        finally:
            self.pending -= 1
        if len(answers) == 1:
            return _json(answers[0], answers[0].pop("status", 200))
        return _json({"model": self.model.name, "answers": answers})

    async def _answers(self, request: Request, top: int, attention: bool) -> list[dict[str, Any]]:
        deadline, pixels = time.monotonic() + self.limits.timeout, self.limits.max_megapixels * 1_000_000
        files = await self._files(self._limited(request))
        job = self.pool.submit(self.model.answers, files, top, attention, pixels, deadline)
        return await asyncio.wrap_future(job)  # if the time is over, a job that was not begun is cancelled

    def _limited(self, request: Request) -> Request:
        """Return a request that is refused if it is too large."""
        left = self.limits.max_mb << 20

        async def receive() -> Message:
            nonlocal left
            message = await request.receive()
            left -= len(message.get("body", b""))
            if left < 0:
                while message.get("more_body"):  # who is cut off while sending does not read the answer
                    message = await request.receive()
                raise Refused(413, f"The request has more than {self.limits.max_mb} MB. Send less.")
            return message

        return Request(request.scope, receive)

    async def _files(self, request: Request) -> Sequence[bytes]:
        """Return the images of a request: its body, or the files of a form."""
        most = self.limits.max_images
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            files = [await request.body()]
        else:
            async with request.form(max_files=most, max_fields=most) as form:
                files = [await file.read() for _, file in form.multi_items() if not isinstance(file, str)]
        files = [data for data in files if data]  # browsers send no bytes for a field that is empty
        if not files:
            raise Refused(400, "The request has no image. Send the bytes of one, or a form with files.")
        return files

    async def _error(self, request: Request, error: Any) -> Response:
        if isinstance(error, Refused):
            return _json({"error": str(error)}, error.status, {"Retry-After": "1"} if error.status == 503 else None)
        if not isinstance(error, HTTPException):  # or the client has left, and receives nothing
            return _json({"error": "The server failed. Its log tells why."}, 500)
        messages = {
            404: "There is nothing at this address. There are /, /health and /predict.",
            405: f"This address does not take {request.method[:20]}. Images are sent to /predict with POST.",
        }
        message = messages.get(error.status_code, error.detail)
        return _json({"error": message}, error.status_code, error.headers)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.pool.shutdown(cancel_futures=True)


class Server(uvicorn.Server):
    """uvicorn, which at its end still answers the requests that are on their way on open connections."""

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop listening, and close each connection after its next answer, or soon if it is idle."""
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        if self.server_state.connections:
            await asyncio.sleep(0.5)
        await super().shutdown(sockets)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(as_json(value), status, headers, "application/json")


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise Refused(400, f"{name} is an integer from {least} to {most:,}. Received: {text[:40]!r}")
    return int(text)
