"""Limits on the cost of a client."""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence

from starlette.exceptions import HTTPException

from .engine import Engine
from .estimate import at_once, bytes_of_answer, bytes_of_run, least, pixels_of

__all__ = ["Limits"]

COPIES = 4
"""Of the outputs of a request in memory at once: as arrays, as the body, and twice while it goes to the socket."""

_THIS_MACHINE = ("127.0.0.0/8", "::1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the cost of a client.

    Attributes:
        body: Bytes of a request.
        pixels: Pixels of an image, or of all images of one request: as sent, while they are resized, or resized.
        memory: Bytes that the model may need for one request, or for several in a batch, as estimated before they are
            computed.
        answer: Bytes of an answer, estimated in the same way.
        pending: Requests that are read, wait or are computed; more get the status 503.
        per_client: Those of one address; more get the status 429. `None`: 32, and any number from this machine, where
            a proxy may be.
        connections_per_client: Connections of one address; for one more, one that waits for a request is closed.
            `None`: 128, and any number from this machine.
        proxies: Addresses or networks, such as `"10.0.0.0/8"`, that ask for many clients: the limits of one address are
            not for them.
        timeout: Seconds that a request waits to be computed before it gets the status 503.

    Raises:
        ValueError: One is not positive, or is not an address.

    Example:
        >>> Limits(pending=8).body
        10485760
    """

    body: int = 10 << 20
    pixels: int = 50_000_000
    memory: int = 1 << 30
    answer: int = 160 << 20
    pending: int = 64
    per_client: int | None = None
    connections_per_client: int | None = None
    proxies: Sequence[str] = ()
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name != "proxies" and value is not None and not value > 0:
                raise ValueError(f"{name} must be positive. Received: {value!r}")
        if isinstance(self.proxies, str):
            raise ValueError(f"proxies is a list of addresses. Pass [{self.proxies!r}]. Received: {self.proxies!r}")
        for address in self.proxies:
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError:
                example = "an address or a network, such as 10.0.0.7 or 10.0.0.0/8"
                raise ValueError(f"A proxy is {example}. Received: {address!r}") from None

    def requests_of(self, client: str) -> float:
        """Return the maximum number of waiting requests of an address.

        Example:
            >>> Limits().requests_of("192.0.2.1"), Limits().requests_of("127.0.0.1")
            (32, inf)
        """
        return self._of(client, self.per_client, 32)

    def connections_of(self, client: str) -> float:
        """Return the maximum number of connections of an address.

        Example:
            >>> Limits(proxies=("192.0.2.0/24",)).connections_of("192.0.2.1")
            inf
        """
        return self._of(client, self.connections_per_client, 128)

    def _of(self, client: str, limit: int | None, default: int) -> float:
        if _is_in(client, tuple(self.proxies)) or (limit is None and _is_in(client, _THIS_MACHINE)):
            return math.inf
        return default if limit is None else limit

    def check(self, engine: Engine, count: int, size: Sequence[int], outputs: Mapping[str, bool]) -> None:
        """Refuse images that would cost too much.

        Args:
            engine: The model.
            count: How many images there are.
            size: `(height, width)` of each.
            outputs: The wanted outputs, and whether each is to be sent as bytes.

        Raises:
            HTTPException: They would (status 413), or have not one patch (status 422).
        """
        down, across = least(engine)
        if size[0] < down or size[1] < across:
            message = f"An image has at least {across}×{down} pixels, one patch. Received: {size[1]}×{size[0]}"
            raise HTTPException(422, message)
        what = f"{count} images of {size[1]}×{size[0]}" if count > 1 else f"The image of {size[1]}×{size[0]}"
        pixels = count * pixels_of(engine, size)
        if pixels > self.pixels:
            message = f"{what} have {pixels:,} pixels where the model resizes them, and at most {self.pixels:,} are"
            raise HTTPException(413, f"{message} taken. Send fewer or smaller ones.")
        needed = _bytes_needed(engine, count, size, outputs)
        if needed > self.memory:
            message = f"{what} would need about {_mb(needed)} of memory, and at most {_mb(self.memory)} are given."
            raise HTTPException(413, f"{message} Send smaller ones.")
        needed = bytes_of_answer(engine, count, size, outputs)
        if needed > self.answer:
            message = f"The answer to {what} would have about {_mb(needed)}, and at most {_mb(self.answer)} are sent."
            raise HTTPException(413, f"{message} Ask for fewer images or outputs, or for binary ones.")

    def at_once(self, engine: Engine, size: Sequence[int], outputs: Iterable[str]) -> int:
        """Return how many images are computed together, of one request or of several, so that the memory suffices.

        Args:
            engine: The model.
            size: `(height, width)` of each.
            outputs: The wanted outputs.
        """
        count = at_once(engine, size)
        while count > 1 and _bytes_needed(engine, count, size, outputs) > self.memory:
            count //= 2
        return count


def _bytes_needed(engine: Engine, count: int, size: Sequence[int], outputs: Iterable[str]) -> int:
    """Return the memory that a run and its outputs need."""
    arrays = bytes_of_answer(engine, count, size, dict.fromkeys(outputs, True))
    return bytes_of_run(engine, count, size) + COPIES * arrays


@functools.lru_cache(maxsize=1024)
def _is_in(client: str, networks: tuple[str, ...]) -> bool:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:  # such as of a test's client
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ipaddress.ip_network(network, strict=False) for network in networks)


def _mb(number: int) -> str:
    return f"{number / 1e6:,.0f} MB"
