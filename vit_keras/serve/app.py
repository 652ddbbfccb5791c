"""The ASGI app of the server: a table of addresses, and a function for each."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import http
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from .. import __version__
from .._internal import html_page
from .._internal.validate import did_you_mean
from .engine import Engine
from .estimate import bytes_of_run
from .http import RETRY
from .jobs import Work, Workers
from .limits import Limits
from .metrics import Metrics
from .multipart import first_part
from .pictures import attention_maps, read_picture, resized
from .protocol import VERSION, json_response, read_request, write_response

__all__ = ["App", "Limits"]

Late = asyncio.exceptions.TimeoutError
"""What `asyncio.wait_for` raises: `TimeoutError`, from Python 3.11 on."""
KEPT = 256 << 20
"""Maximum bytes of a run whose memory is kept for the next one."""
_FOLDER = Path(__file__).parent
_FOOTER = """<p>The image is sent to this server only, and is not kept.</p>
    <p>For programs: <code>curl --data-binary @cat.jpg <span id="address"></span></code>, the Open Inference Protocol at
      <a href="v2"><code>v2</code></a>, its description at <a href="openapi.json"><code>openapi.json</code></a>.</p>"""


@dataclasses.dataclass(frozen=True)
class _Route:
    method: str
    address: str  # {model} stands for the model's name
    answer: Callable[[App, Request], Any]


class App:
    """The ASGI app of a server.

    Args:
        engine: The model.
        limits: Limits on the cost of a client.
        threads: Number of requests, or batches, that are computed at once.
        batch: Maximum number of requests in a batch.

    Attributes:
        stopping: Set it to let health checks say that the server takes no more, and answers close connections.
        metrics: What is counted.
        unsent: Returns the bytes of the answers that clients have not taken yet.
    """

    engine: Engine
    limits: Limits

    def __init__(self, engine: Engine, limits: Limits | None = None, *, threads: int = 2, batch: int = 1):
        self.engine, self.limits = engine, limits or Limits()
        self.metrics: Metrics = Metrics()
        self.metrics.pending.set_function(lambda: self._clients.total())
        self.unsent: Callable[[], int] = lambda: 0
        most = functools.partial(self.limits.at_once, engine)
        self.workers: Workers = Workers(self._run, threads=threads, batch=batch, at_once=most)
        self.stopping = False
        self._clients: collections.Counter[str] = collections.Counter()
        self._names: dict[Any, str] = {}
        routes = []
        models = (f"/v2/models/{engine.name}", f"/v2/models/{engine.name}/versions/{VERSION}")
        for route in ROUTES:
            answer = functools.partial(route.answer, self)
            self._names[answer] = route.address
            for address in dict.fromkeys(route.address.replace("{model}", model) for model in models):
                routes.append(Route(address, answer, methods=[route.method]))
        handlers = {HTTPException: self._refused, ClientDisconnect: self._left, Exception: self._failed}
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer any request."""
        start, status = time.monotonic(), 0
        if scope["path"].startswith(("http://", "https://")):  # as proxies are asked
            scope["path"] = "/" + scope["path"].partition("://")[2].partition("/")[2]

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.stopping:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        with contextlib.suppress(Exception):  # Starlette raises what `_failed` has answered
            await self._app(scope, receive, counted)
        name = self._names.get(scope.get("endpoint"), "other")
        self.metrics.requests.labels(name, status).inc()
        self.metrics.request_seconds.labels(name).observe(time.monotonic() - start)

    def close(self) -> None:
        """End the threads after their pending jobs."""
        self.workers.close()

    # --- errors ---------------------------------------------------------------------------------------------------

    async def _refused(self, request: Request, error: HTTPException) -> Response:
        message, path, headers = error.detail, request.scope["path"][:200], dict(error.headers or {})
        if message == http.HTTPStatus.NOT_FOUND.phrase:  # Starlette's own
            addresses = ", ".join(route.address.replace("{model}", "/v2/models/M") for route in ROUTES)
            message = f"There is nothing at {path!r}. There are: {addresses}. "
            message += f"The one model is {self.engine.name}, in the version {VERSION}."
        elif error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
            message = f"{path} takes {headers['Allow']}. Received: {request.method[:20]}"
        return json_response({"error": message}, error.status_code, headers)

    async def _left(self, request: Request, error: ClientDisconnect) -> Response:
        return json_response({"error": "The client left before its request was complete."}, 400)  # for the metrics

    async def _failed(self, request: Request, error: Exception) -> Response:
        traceback.print_exception(error)
        return json_response({"error": "The server failed. Its log tells why."}, 500)

    # --- what comes before an answer ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _place(self, request: Request) -> Iterator[None]:
        """Reserve a place in the queue for a request, from before its body is read until its answer is ready."""
        limits, client = self.limits, request.client.host if request.client else ""
        if self._clients.total() >= limits.pending:
            raise HTTPException(
                503,
                f"The server is busy: {limits.pending} requests are queued (the limit). Try again in a second.",
                RETRY,
            )
        if self.unsent() > 2 * limits.answer:
            raise HTTPException(503, "Too many answers are not taken by their clients. Try again in a second.", RETRY)
        most = limits.requests_of(client)
        if self._clients[client] >= most:
            message = f"{most} of your requests are queued (the limit). Send the next after an answer."
            raise HTTPException(429, message, RETRY)
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            self._clients += collections.Counter()  # forget who has none

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request, unless it is too large or too slow."""
        limit, body = self.limits.body, bytearray()
        length = int(request.headers.get("content-length", "0"))  # only digits come this far
        if length > limit:
            message = f"The body has {length:,} bytes, and at most {limit:,} are taken. Send a smaller one."
            raise HTTPException(413, message)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "Content-Encoding is not supported. Send the body as it is.")

        async def read():
            async for chunk in request.stream():
                body.extend(chunk)
                if len(body) > limit:
                    raise HTTPException(413, f"The body has more than {limit:,} bytes. Send a smaller one.")

        try:
            await asyncio.wait_for(read(), self.limits.timeout)
        except Late:
            message = f"{len(body):,} bytes of the body came within {self.limits.timeout:g} seconds. Send it faster."
            raise HTTPException(408, message) from None
        return bytes(body)

    # --- computing ------------------------------------------------------------------------------------------------

    def _run(self, images: np.ndarray, outputs: Sequence[str]) -> Mapping[str, np.ndarray]:
        start = time.monotonic()
        keep = bytes_of_run(self.engine, len(images), images.shape[1:3]) <= KEPT
        found = self.engine.run(images, outputs, keep=keep)
        self.metrics.inference_seconds.observe(time.monotonic() - start)
        self.metrics.batches.inc()
        self.metrics.images.inc(len(images))
        return found

    async def _compute(self, request: Request, prepare: Callable[[bytes], Work]) -> Response:
        """Read the body of a request, and return a worker's answer."""
        with self._place(request):
            body = await self._body(request)
            future = self.workers.submit(functools.partial(prepare, body), self.limits.timeout)
            body = b""  # the job has it, until it is done or given up
            try:
                return await asyncio.wait_for(asyncio.wrap_future(future), self.limits.timeout)
            except (Late, TimeoutError):
                message = f"It was not computed within {self.limits.timeout:g} seconds."
                raise HTTPException(503, f"{message} Try again when less is asked for.", RETRY) from None

    # --- answers --------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """Return the web page."""
        headers = {"Content-Security-Policy": "frame-ancestors 'none'", "Cache-Control": "no-cache"}
        return HTMLResponse(_page(self.engine.name), headers=headers)

    async def openapi(self, request: Request) -> Response:
        """Return the description of all addresses."""
        text = (_FOLDER / "openapi.json").read_text(encoding="utf-8").replace("MODEL", self.engine.name)
        return json_response(json.loads(text) | {"info": {"title": self.engine.name, "version": __version__}})

    async def numbers(self, request: Request) -> Response:
        """Return the metrics."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self.metrics.registry), media_type=content_type)

    async def server(self, request: Request) -> Response:
        """Return the server's metadata."""
        return json_response({"name": "vit-keras", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live(self, request: Request) -> Response:
        """Return that the server is live."""
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        """Return whether the server takes requests."""
        return json_response({"ready": not self.stopping}, 503 if self.stopping else 200)

    async def model(self, request: Request) -> Response:
        """Return the model's metadata: inputs and outputs."""
        inputs = [{"name": "images", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}]
        outputs = [{"name": n, "datatype": kind, "shape": shape} for n, (kind, shape) in self.engine.outputs.items()]
        about = {"name": self.engine.name, "versions": [VERSION], "platform": "onnxruntime_onnx"}
        return json_response(about | {"inputs": inputs, "outputs": outputs})

    async def model_ready(self, request: Request) -> Response:
        """Return whether the model takes requests."""
        return json_response({"name": self.engine.name, "ready": not self.stopping}, 503 if self.stopping else 200)

    async def infer(self, request: Request) -> Response:
        """Compute the outputs of a batch of images."""

        def prepare(body):
            inference = read_request(body, request.headers, self.engine)
            count, *size = inference.images.shape[:3]
            self.limits.check(self.engine, count, size, inference.outputs)
            finish = functools.partial(write_response, inference, engine=self.engine)
            return Work(inference.images, tuple(inference.outputs), finish)

        return await self._compute(request, prepare)

    async def predict(self, request: Request) -> Response:
        """Classify an image."""
        _check_names(request.query_params)
        top = _number(request.query_params, "top", 5, 1, 100_000)
        wants_attention = bool(_number(request.query_params, "attention", 0, 0, 1))
        content_type = request.headers.get("content-type", "")
        engine = self.engine
        results = tuple(name for name in _RESULTS if name in engine.outputs)[:1]
        attention = engine.attention if wants_attention else ()

        def prepare(body):
            if content_type.lower().startswith("multipart/form-data"):
                try:
                    body = first_part(body, content_type)
                except ValueError as error:
                    raise HTTPException(400, f"The form cannot be read: {error}.") from None
            if not body:
                raise HTTPException(400, "The body is empty. Send the bytes of an image, or a form with one file.")
            picture = read_picture(body, self.limits.pixels)
            size = picture.shape[:2]
            images = resized(picture, engine.preprocessing, self.limits.pixels)[None]
            sent = dict.fromkeys(results, False) | dict.fromkeys(attention, True)
            self.limits.check(engine, 1, images.shape[1:3], sent)

            def finish(found):
                answer = {"model": engine.name, "size": list(size)}
                for name in results:
                    answer |= _result(name, found[name][0], engine, top)
                if wants_attention:
                    scores = [found[name] for name in attention]
                    patches = engine.metadata.get("patches")
                    maps = attention_maps(scores, size, engine.preprocessing, patches) if scores else None
                    answer["attention"] = maps
                return json_response(answer)

            return Work(images, (*results, *attention), finish)

        return await self._compute(request, prepare)


ROUTES = (
    _Route("GET", "/", App.page),
    _Route("POST", "/predict", App.predict),
    _Route("GET", "/metrics", App.numbers),
    _Route("GET", "/openapi.json", App.openapi),
    _Route("GET", "/v2", App.server),
    _Route("GET", "/v2/health/live", App.live),
    _Route("GET", "/v2/health/ready", App.ready),
    _Route("GET", "{model}", App.model),
    _Route("GET", "{model}/ready", App.model_ready),
    _Route("POST", "{model}/infer", App.infer),
)


@functools.lru_cache(maxsize=1)
def _page(name: str) -> bytes:
    return html_page.picture_page(name, _FOOTER, connect="'self'").encode()


_RESULTS = ("probabilities", "numbers", "features", "outputs")
"""Outputs of files; the answer to an image has the first of these that its file returns."""

_PARAMETERS = ("top", "attention")
"""Parameters of the query of `/predict`."""


def _result(name: str, values: np.ndarray, engine: Engine, top: int) -> dict[str, Any]:
    """Return the part of an answer for one output; a segmenter has one at each place, which stays an array."""
    if name == "probabilities" and values.ndim == 1:
        return {"predictions": _predictions(values, engine.labels, top)}
    if name == "numbers":
        return {"numbers": _values(values, engine.labels, engine.metadata.get("task"))}
    return {name: values.tolist()}


def _predictions(scores: np.ndarray, labels: Sequence[str] | None, top: int) -> list[dict[str, Any]]:
    best = np.argsort(-scores, kind="stable")[:top]
    return [
        {"class": int(n), "label": labels[n] if labels else f"class {n}", "probability": float(f"{scores[n]:.6g}")}
        for n in best
    ]


def _values(values: np.ndarray, labels: Sequence[str] | None, task: str | None) -> list[dict[str, Any]]:
    """Return numbers with their names, or with the names of the nearest levels (`anatomy.levels`, without Keras)."""
    places = np.arange(len(values))
    if labels and task == "ordinal":
        places = np.clip(np.nan_to_num(np.rint(values)), 0, len(labels) - 1).astype(int)
    names = [labels[place] if labels else f"number {place}" for place in places.tolist()]
    return [{"name": name, "value": float(value)} for name, value in zip(names, values)]


def _check_names(query: Mapping[str, str]) -> None:
    for name in query:
        if name not in _PARAMETERS:
            hint = did_you_mean(name[:40], _PARAMETERS)
            known = " and ".join(_PARAMETERS)
            raise HTTPException(400, f"/predict takes the parameters {known}.{hint} Received: {name[:40]!r}")


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise HTTPException(400, f"{name} is a whole number from {least} to {most}. Received: {text[:40]!r}")
    return int(text)
