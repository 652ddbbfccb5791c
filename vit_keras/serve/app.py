"""What the server answers: a table of addresses, and a function for each."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, html_page
from .connections import Late, Refused, Request, Response
from .engine import Engine
from .jobs import Work, Workers
from .metrics import Metrics
from .multipart import first_part
from .pictures import attention_maps, read_picture, resized
from .protocol import VERSION, read_request, write_response

__all__ = ["App", "Limits"]

_FOLDER = Path(__file__).parent
_FOOTER = """<p>The picture goes to this server alone, and is not kept.</p>
    <p>For programs: <code>curl --data-binary @cat.jpg <span id="address"></span></code>, the Open Inference Protocol at
      <a href="v2"><code>v2</code></a>, its description at <a href="openapi.json"><code>openapi.json</code></a>.</p>"""
_RETRY = {"Retry-After": "1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may cost.

    Attributes:
        body: Bytes of a request.
        pixels: Pixels of a picture, or of all images of one request.
        pending: Requests that are read, wait or are computed; more get the status 503.
        per_client: Those of one address; more get the status 429. `None`: any number.
        timeout: Seconds that a request waits to be computed before it gets the status 503.

    Raises:
        ValueError: One is not positive.

    Example:
        >>> Limits(pending=8).body
        10485760
    """

    body: int = 10 << 20
    pixels: int = 50_000_000
    pending: int = 64
    per_client: int | None = None
    timeout: float = 30.0

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive. Received: {value!r}")


@dataclasses.dataclass(frozen=True)
class _Route:
    method: str
    address: str  # {model} stands for the model's name
    answer: Callable[[App, Request], Any]
    costs: bool = False


class App:
    """The function of a server.

    Args:
        engine: The model.
        limits: What a client may cost.
        threads: How many requests, or batches, are computed at once.
        batch: How many requests at most are computed together.

    Attributes:
        stopping: Set it to let health checks say that the server takes no more.
        connections: Returns the number of open connections, for the metrics.
    """

    def __init__(self, engine: Engine, limits: Limits | None = None, *, threads: int = 2, batch: int = 1):
        self.engine, self.limits = engine, limits or Limits()
        self.metrics = Metrics()
        self.workers = Workers(self._run, threads=threads, batch=batch)
        self.stopping = False
        self.connections: Callable[[], int] = lambda: 0
        self._clients: collections.Counter[str] = collections.Counter()
        model = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
        self._patterns = [(re.compile(route.address.replace("{model}", model)), route) for route in ROUTES]

    async def __call__(self, request: Request) -> Response:
        """Return the answer to a request, whatever it is."""
        start, address = time.monotonic(), "other"
        try:
            route = self._route(request)
            address = route.address
            with self._place(request.client) if route.costs else contextlib.nullcontext():
                response = route.answer(self, request)
                response = await response if asyncio.iscoroutine(response) else response
        except Refused as refused:
            response = refused.response
        except Exception:
            traceback.print_exc()
            response = Refused(500, "The server failed. Its log tells why.").response
        self.metrics.add("vit_keras_requests_total", route=address, status=response.status)
        self.metrics.observe("vit_keras_request_seconds", time.monotonic() - start, route=address)
        return response

    def close(self) -> None:
        """End the threads, after what they have to do."""
        self.workers.close()

    # --- what comes before an answer ------------------------------------------------------------------------------

    def _route(self, request: Request) -> _Route:
        found = [(match, route) for pattern, route in self._patterns if (match := pattern.fullmatch(request.path))]
        if not found:
            addresses = ", ".join(dict.fromkeys(route.address.replace("{model}", "/v2/models/M") for route in ROUTES))
            raise Refused(404, f"There is nothing at {request.path[:200]!r}. There are: {addresses}.")
        methods = sorted({route.method for _, route in found} | ({"HEAD"} if found[0][1].method == "GET" else set()))
        if request.method not in methods:
            message = f"{request.path[:200]} takes {', '.join(methods)}. Received: {request.method[:20]}"
            raise Refused(405, message, {"Allow": ", ".join(methods)})
        match, route = found[0]
        named = match.groupdict()
        if named.get("model") not in (None, self.engine.name) or named.get("version") not in (None, VERSION):
            message = f"The one model is {self.engine.name}, in the version {VERSION}."
            raise Refused(404, f"{message} Received: {request.path[:200]}")
        return route

    @contextlib.contextmanager
    def _place(self, client: str) -> Iterator[None]:
        """Hold a place for a request from before its body is read until its answer is there."""
        limits = self.limits
        if self._clients.total() >= limits.pending:
            raise Refused(503, f"{limits.pending} requests wait, as many as may. Try again in a second.", _RETRY)
        if limits.per_client is not None and self._clients[client] >= limits.per_client:
            message = f"{limits.per_client} of your requests wait, as many as may. Send the next after an answer."
            raise Refused(429, message, _RETRY)
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            self._clients += collections.Counter()  # forget who has none

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body
        length = request.headers.get("content-length", "0")
        if int(length) > limit:  # h11 lets only digits pass
            raise Refused(
                413, f"The body has {int(length):,} bytes, and at most {limit:,} are taken. Send a smaller one."
            )
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(415, "Content-Encoding is not supported. Send the body as it is.")
        return await request.body(limit)

    # --- computing ------------------------------------------------------------------------------------------------

    def _run(self, images: np.ndarray, outputs: Sequence[str]) -> Mapping[str, np.ndarray]:
        start = time.monotonic()
        found = self.engine.run(images, outputs)
        self.metrics.observe("vit_keras_inference_seconds", time.monotonic() - start)
        self.metrics.add("vit_keras_batches_total")
        self.metrics.add("vit_keras_images_total", len(images))
        return found

    async def _compute(self, prepare: Callable[[], Work]) -> Response:
        future = self.workers.submit(prepare)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.limits.timeout)
        except Late:
            message = f"It was not computed within {self.limits.timeout:g} seconds. Try again when less is asked for."
            raise Refused(503, message, _RETRY) from None

    # --- answers --------------------------------------------------------------------------------------------------

    def page(self, request: Request) -> Response:
        """Return the page for people."""
        headers = {"Content-Security-Policy": "frame-ancestors 'none'", "Cache-Control": "no-cache"}
        return Response(_page(self.engine.name), "text/html; charset=utf-8", headers=headers)

    def openapi(self, request: Request) -> Response:
        """Return the description of all addresses."""
        text = (_FOLDER / "openapi.json").read_text(encoding="utf-8").replace("MODEL", self.engine.name)
        return Response.json(json.loads(text) | {"info": {"title": self.engine.name, "version": __version__}})

    def numbers(self, request: Request) -> Response:
        """Return the metrics."""
        gauges = {"vit_keras_pending": self._clients.total(), "vit_keras_connections": self.connections()}
        return Response(self.metrics.text(gauges).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def server(self, request: Request) -> Response:
        """Return what the server is."""
        return Response.json({"name": "vit-keras", "version": __version__, "extensions": ["binary_tensor_data"]})

    def live(self, request: Request) -> Response:
        """Return that the server lives."""
        return Response.json({"live": True})

    def ready(self, request: Request) -> Response:
        """Return whether the server takes requests."""
        return Response.json({"ready": not self.stopping}, 503 if self.stopping else 200)

    def model(self, request: Request) -> Response:
        """Return what the model takes and returns."""
        inputs = [{"name": "images", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}]
        outputs = [{"name": n, "datatype": kind, "shape": shape} for n, (kind, shape) in self.engine.outputs.items()]
        about = {"name": self.engine.name, "versions": [VERSION], "platform": "onnxruntime_onnx"}
        return Response.json(about | {"inputs": inputs, "outputs": outputs})

    def model_ready(self, request: Request) -> Response:
        """Return whether the model takes requests."""
        return Response.json({"name": self.engine.name, "ready": not self.stopping}, 503 if self.stopping else 200)

    async def infer(self, request: Request) -> Response:
        """Compute the outputs of a batch of images."""
        body = await self._body(request)

        def prepare():
            inference = read_request(body, request.headers, self.engine)
            pixels = inference.images.size // 3
            if pixels > self.limits.pixels:
                raise Refused(413, f"The images have {pixels:,} pixels, and at most {self.limits.pixels:,} are taken.")
            finish = functools.partial(write_response, inference, engine=self.engine)
            return Work(inference.images, tuple(inference.outputs), finish)

        return await self._compute(prepare)

    async def predict(self, request: Request) -> Response:
        """Classify a picture."""
        top = _number(request.query, "top", 5, 1, 100_000)
        wants_attention = bool(_number(request.query, "attention", 0, 0, 1))
        body = await self._body(request)
        if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            try:
                body = first_part(body, request.headers["content-type"])
            except ValueError as error:
                raise Refused(400, f"The form cannot be read: {error}.") from None
        if not body:
            raise Refused(400, "The body is empty. Send the bytes of a picture, or a form with one file.")
        engine = self.engine
        results = tuple(name for name in ("probabilities", "features") if name in engine.outputs)[:1]
        attention = engine.attention if wants_attention else ()

        def prepare():
            picture = read_picture(body, self.limits.pixels)
            size = picture.shape[:2]

            def finish(found):
                answer = {"model": engine.name, "size": list(size)}
                if "probabilities" in found:
                    answer["predictions"] = _predictions(found["probabilities"][0], engine.labels, top)
                if "features" in found:
                    answer["features"] = found["features"][0].tolist()
                if wants_attention:
                    scores = [found[name] for name in attention]
                    answer["attention"] = attention_maps(scores, size, engine.preprocessing) if scores else None
                return Response.json(answer)

            return Work(resized(picture, engine.preprocessing)[None], (*results, *attention), finish)

        return await self._compute(prepare)


ROUTES = (
    _Route("GET", "/", App.page),
    _Route("POST", "/predict", App.predict, costs=True),
    _Route("GET", "/metrics", App.numbers),
    _Route("GET", "/openapi.json", App.openapi),
    _Route("GET", "/v2", App.server),
    _Route("GET", "/v2/health/live", App.live),
    _Route("GET", "/v2/health/ready", App.ready),
    _Route("GET", "{model}", App.model),
    _Route("GET", "{model}/ready", App.model_ready),
    _Route("POST", "{model}/infer", App.infer, costs=True),
)


@functools.lru_cache(maxsize=1)
def _page(name: str) -> bytes:
    return html_page.picture_page(name, _FOOTER, connect="'self'").encode()


def _predictions(scores: np.ndarray, labels: Sequence[str] | None, top: int) -> list[dict[str, Any]]:
    best = np.argsort(-scores, kind="stable")[:top]
    return [
        {"class": int(n), "label": labels[n] if labels else f"class {n}", "probability": round(float(scores[n]), 6)}
        for n in best
    ]


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise Refused(400, f"{name} is a whole number from {least} to {most}. Received: {text[:40]!r}")
    return int(text)
