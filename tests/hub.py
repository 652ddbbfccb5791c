"""Servers on this machine: of the files of a folder, and one that answers as Hugging Face does."""

import contextlib
import functools
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@contextlib.contextmanager
def running(server):
    """A server that answers in a thread as long as the block lasts."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Files(SimpleHTTPRequestHandler):
    """The files of a folder."""

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def served(folder, handler=Files):
    """The address of a server of the files of a folder."""
    handler = functools.partial(handler, directory=str(folder))
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = unquote(urlsplit(self.path).path).lstrip("/")
        self.server.seen.append(path)
        body = self.server.answer(path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args):
        pass


class Hub(ThreadingHTTPServer):
    """Repositories in folders: `repositories[name]`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen, self.repositories, self.changed = [], {}, {}

    def answer(self, path):
        if path.startswith("api/models/") and (folder := self.repositories.get(path.removeprefix("api/models/"))):
            files = sorted(folder.iterdir())
            return json.dumps({"siblings": [self.describe(file) for file in files]}).encode()
        name, _, file = path.partition("/resolve/main/")
        there = self.repositories.get(name)
        if there is None or not (there / file).is_file():
            return None
        return self.changed.get(file, (there / file).read_bytes())

    def describe(self, file):
        content = file.read_bytes()
        large = {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
        return {"rfilename": file.name, "size": len(content), **(large if len(content) > 5000 else {})}

    @property
    def address(self):
        """What `HF_ENDPOINT` has to be."""
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def running_hub():
    """A running `Hub`."""
    with running(Hub()) as server:
        yield server
