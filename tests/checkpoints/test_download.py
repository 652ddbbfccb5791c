"""Downloads, against a real server on this machine that can misbehave in all the usual ways."""

import hashlib
import importlib
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hub import running

import vit_keras
from vit_keras.checkpoints.download import cached_path, download

module = importlib.import_module("vit_keras.checkpoints.download")
BODY = b"PK\x03\x04" + random.Random(0).randbytes(50_000)
OTHER = b"PK\x03\x04" + random.Random(1).randbytes(50_000)  # of the same length
PAGE = b"<!DOCTYPE html><html><body>Please accept our terms.</body></html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 347502902\n"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.seen.append((self.path, self.headers["Range"], self.headers["If-Range"]))
        server.before()
        status = next(server.statuses, 200)
        if status != 200:
            return self.send_error(status)
        start = self.first_byte()
        if start and start >= len(server.body):
            return self.send_error(416)
        rest = server.body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.body) - 1}/{len(server.body)}")
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.framing == "length":
            self.send_header("Content-Length", str(len(rest)))
        elif server.framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        return self.send_body(rest[: next(server.cuts, None)], len(rest))

    def first_byte(self):
        wanted, condition = self.headers["Range"], self.headers["If-Range"]
        same = condition in (None, self.server.etag) or self.server.ignores_if_range
        return int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and same and self.server.ranges else 0

    def send_body(self, data, whole):
        half = len(data) // 2
        for piece, hook in ((data[:half], self.server.midway), (data[half:], lambda: None)):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self.server.framing == "chunked" else piece)
            self.wfile.flush()
            hook()
        if self.server.framing == "chunked" and len(data) == whole:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True  # where `data` is not all of it, this is the break

    def log_message(self, *args):
        pass


class Chunked(Handler):
    protocol_version = "HTTP/1.1"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []  # (path, Range, If-Range) of every request
        self.body, self.etag = BODY, '"one"'
        self.ranges, self.ignores_if_range = True, False
        self.framing = "length"  # or "chunked", or "close": the end of the connection is the end of the file
        self.statuses = iter(())  # of the next answers; 200 after the last of them
        self.cuts = iter(())  # bytes after which the next connections break; none breaks after the last of them
        self.before = self.midway = lambda: None  # called in a request: when it comes, and at half of the body

    def url(self, path="/models/ViT.npz"):
        return f"http://127.0.0.1:{self.server_port}{path}"

    @property
    def ranges_asked(self):
        return [asked for _, asked, _ in self.seen]

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that has left is no error
            super().handle_error(request, client_address)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "PAUSE", 0.01)
    with running(Server()) as server:
        yield server


def get(url, **options):
    return download(url, progress=False, timeout=10, **options)


def files(folder):
    """All files below a folder but the locks, which stay."""
    return sorted(p.name for p in Path(folder).rglob("*") if p.is_file() and p.suffix != ".lock")


def home():
    return Path(os.environ["VIT_KERAS_HOME"])


# A file comes, once


def test_file_lands_in_its_place_in_the_cache(server):
    path = get(server.url())
    assert path == cached_path(server.url())
    assert path.read_bytes() == BODY
    assert files(home()) == ["ViT.npz"]


def test_home_is_where_the_variable_says(server, tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_HOME", str(tmp_path / "elsewhere"))
    path = get(server.url())
    assert path.is_relative_to(tmp_path / "elsewhere")
    assert path.read_bytes() == BODY


def test_queries_tell_files_apart(server):
    first = get(server.url("/ViT.npz?revision=1"))
    server.body = OTHER
    second = get(server.url("/ViT.npz?revision=2"))
    assert [path for path, *_ in server.seen] == ["/ViT.npz?revision=1", "/ViT.npz?revision=2"]
    assert (first.read_bytes(), second.read_bytes()) == (BODY, OTHER)
    assert first.suffix == second.suffix == ".npz"


@pytest.mark.parametrize(
    "path",
    [
        *("/../../ViT.npz", "/%2e%2e/%2e%2e/ViT.npz", "/..%2f..%2fViT.npz", "/?file=../ViT.npz"),
        *("/..%5c..%5cViT.npz", "/C:/ViT.npz", "/C:%5cViT.npz", "/C%3a/models*/ViT.npz"),
        *("/a%00b%0a/ViT.npz", "/...%20/.. /ViT.npz", "/models./ViT.npz "),
    ],
)
def test_no_url_leads_out_of_the_cache(path):
    place = cached_path(f"http://host{path}")
    assert Path(os.path.normpath(place)).is_relative_to(home() / "host")
    names = place.relative_to(home()).parts
    assert not set("".join(names)) & set('\\:*?"<>|\0\n')  # which are not names on Windows
    assert not any(name.endswith((".", " ")) for name in names)  # which Windows leaves out there


def test_no_file_has_the_final_name_before_it_is_complete(server):
    during = []

    def look():
        deadline = time.monotonic() + 5
        while not files(home()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # the file that appeared first may be the one with the tag
        during.extend(files(home()))

    server.midway = look
    path = get(server.url())
    assert path.name not in during
    assert any(name.startswith(path.name) for name in during)  # it was there, under another name


# Broken transfers


def test_broken_transfer_is_resumed(server):
    server.cuts = iter([20_000])
    assert get(server.url()).read_bytes() == BODY
    assert server.seen == [("/models/ViT.npz", None, None), ("/models/ViT.npz", "bytes=19999-", '"one"')]
    assert files(home()) == ["ViT.npz"]


def test_broken_chunked_transfer_is_a_connection_error(server):
    server.framing, server.RequestHandlerClass = "chunked", Chunked
    server.cuts = itertools.repeat(5_000)
    with pytest.raises(ConnectionError, match=r"ViT\.npz"):
        get(server.url())
    assert not cached_path(server.url()).exists()


def test_silent_server_is_not_waited_for_for_ever(server):
    test_is_over = threading.Event()
    server.before = lambda: test_is_over.wait(20)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="timed out"):
        download(server.url(), progress=False, timeout=0.1)
    assert time.monotonic() - start < 5
    test_is_over.set()


def break_once(server):
    """Leave 20000 bytes of the file in the cache, as an interrupted call does."""
    server.cuts = itertools.chain([20_000], itertools.repeat(0))
    with pytest.raises(ConnectionError):
        get(server.url())
    server.cuts = iter(())
    server.seen.clear()


def test_part_is_not_continued_with_another_file(server):
    break_once(server)
    server.body, server.etag = OTHER, '"two"'
    assert get(server.url()).read_bytes() == OTHER
    assert server.seen == [("/models/ViT.npz", "bytes=19999-", '"one"')]


def test_part_is_not_continued_where_the_server_ignores_if_range(server):
    break_once(server)
    server.body, server.etag, server.ignores_if_range = OTHER, '"two"', True
    assert get(server.url()).read_bytes() == OTHER


def test_server_without_ranges_sends_it_all_again(server):
    server.ranges = False
    server.cuts = iter([20_000])
    assert get(server.url()).read_bytes() == BODY


def test_part_that_is_longer_than_the_file_is_thrown_away(server):
    break_once(server)
    server.body = BODY[:10_000]
    assert get(server.url()).read_bytes() == BODY[:10_000]


# Kills and full disks


def killed(*args, **options):
    """What happens where a process is killed, but for what `finally` does, of which there is nothing in a transfer."""
    raise KeyboardInterrupt


def test_a_kill_before_the_new_file_begins_leaves_no_old_part_with_its_tag(server, monkeypatch):
    break_once(server)
    server.body, server.etag = OTHER, '"two"'
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "open", killed, raising=False)
        get(server.url())
    assert get(server.url()).read_bytes() == OTHER


def test_a_file_that_was_complete_before_the_kill_does_not_come_again(server, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "_verify", killed)
        get(server.url())
    assert not cached_path(server.url()).exists()
    assert get(server.url(), size=len(BODY)).read_bytes() == BODY
    assert server.ranges_asked == [None, f"bytes={len(BODY) - 1}-"]
    assert files(home()) == ["ViT.npz"]


def test_a_full_disk_is_not_taken_for_trouble_of_the_server(server):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"ViT\.npz: File too large") as error:
            get(server.url())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(error.value, ConnectionError) and len(server.seen) == 1
    assert not cached_path(server.url()).exists()
    assert get(server.url()).read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=19999-"]


def test_a_cache_that_cannot_be_written_to_is_named_with_what_to_do(server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIT_KERAS_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match="file.cache.*VIT_KERAS_HOME") as error:
        get(server.url())
    assert str(cached_path(server.url())) in str(error.value) and server.seen == []


# Servers that say no


def test_refusal_names_url_and_reason(server):
    server.statuses = itertools.repeat(403)
    with pytest.raises(ConnectionError, match="403") as error:
        get(server.url())
    assert server.url() in str(error.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [500, 503, 429])
def test_passing_trouble_of_the_server_passes(server, status):
    server.statuses = iter([status])
    assert get(server.url()).read_bytes() == BODY


def test_lasting_trouble_of_the_server_is_a_connection_error(server, monkeypatch):
    server.statuses = itertools.repeat(500)
    pauses = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    with pytest.raises(ConnectionError) as error:
        get(server.url())
    assert server.url() in str(error.value)
    assert len(pauses) == len(server.seen) - 1  # none after the last answer


def test_unreachable_server_error_says_where_to_put_the_file():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: a connection is refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/ViT.npz"
        with pytest.raises(ConnectionError) as error:
            get(url)
    assert url in str(error.value)
    assert str(cached_path(url)) in str(error.value)


# Files that are not the file


@pytest.mark.parametrize(
    ("body", "options", "found"),
    [
        (PAGE, {}, "a web page of 65 bytes"),
        (POINTER, {}, "a Git-LFS pointer"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", {}, "an error message"),
        (b"", {}, "an empty file"),
        (BODY, {"size": 60_000}, "50,004 bytes where 60,000 were expected"),
        (BODY, {"size": 40_000}, "50,004 bytes where 40,000 were expected"),
        (BODY, {"sha256": "0" * 64}, hashlib.sha256(BODY).hexdigest()),
        (BODY, {"sha256": "0" * 8}, hashlib.sha256(BODY).hexdigest()),
    ],
    ids=["page", "pointer", "xml", "empty", "too short", "too long", "hash", "beginning of a hash"],
)
def test_wrong_content_is_named_and_not_kept(server, body, options, found):
    server.body = body
    with pytest.raises(ValueError, match=found) as error:
        get(server.url(), **options)
    assert server.url() in str(error.value)
    assert files(home()) == []


def test_right_file_comes_after_a_wrong_one(server):
    server.body = PAGE
    with pytest.raises(ValueError, match="web page"):
        get(server.url())
    server.body = BODY
    assert get(server.url()).read_bytes() == BODY
    assert server.ranges_asked == [None, None]


# Without a network


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_offline_nothing_is_requested(server, monkeypatch, value):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", value)
    with pytest.raises(FileNotFoundError, match="VIT_KERAS_OFFLINE") as error:
        get(server.url())
    assert server.url() in str(error.value)
    assert str(cached_path(server.url())) in str(error.value)
    assert server.seen == []


def test_offline_a_cached_file_is_returned(server, monkeypatch):
    path = get(server.url())
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    assert get(server.url()) == path
    assert len(server.seen) == 1


def test_a_cached_file_of_another_size_comes_again(server, monkeypatch):
    path = get(server.url())
    path.write_bytes(BODY[:-1])  # as a copy that broke off
    with monkeypatch.context() as context:
        context.setenv("VIT_KERAS_OFFLINE", "1")
        sizes = f"in the cache with {len(BODY) - 1:,} bytes instead of {len(BODY):,}, and VIT_KERAS_OFFLINE is set"
        with pytest.raises(FileNotFoundError, match=sizes):
            get(server.url(), size=len(BODY))
        assert get(server.url()) == path  # who knows no size takes what is there
    assert get(server.url(), size=len(BODY)).read_bytes() == BODY
    assert len(server.seen) == 2


# Several at once

CHILD = """
import sys
from vit_keras.checkpoints.download import download
print("ready", flush=True)
sys.stdin.readline()
print("asking", flush=True)
print(download(sys.argv[1], progress=False), flush=True)
"""


def test_two_processes_share_one_download(server):
    both_asked = threading.Event()
    server.midway = lambda: both_asked.wait(30)
    environment = {**os.environ, "PYTHONPATH": str(Path(vit_keras.__file__).parents[1])}
    command = [sys.executable, "-c", CHILD, server.url()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
            assert child.stdout.readline() == "asking\n"
        until = time.monotonic() + 30
        while not server.seen and time.monotonic() < until:  # on a busy machine
            time.sleep(0.01)
        time.sleep(0.5)  # the second has the time to make a request of its own, if it would
        requests = len(server.seen)
        both_asked.set()
        paths = [child.communicate(timeout=30)[0].strip() for child in children]
    finally:
        both_asked.set()
        for child in children:
            child.kill()
    assert (requests, len(server.seen)) == (1, 1)
    assert paths == [str(cached_path(server.url()))] * 2
    assert Path(paths[0]).read_bytes() == BODY
