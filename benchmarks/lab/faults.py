"""Kill this package's work at every moment, and check what is left.

python -m benchmarks.lab.faults [--kills 100] [--only download,finetune] [--output docs/faults.md]

A process does the work. It is killed (SIGKILL) half of the times when it is about to change a file, each change in
turn, and half of the times at a random moment. Then every file with a final name is opened and compared. The same call
is made again: it must end with the files of a call that nobody disturbed, keep what was finished, and delete what was
left over. So it goes for Ctrl-C and for full disks, a third as often. A full disk is a small one in memory (tmpfs) with
a ballast. Where none can be mounted, and beside another process that must not notice, it is a limit on the size of a
file.

The table says what was found; the exit status is 1 if anything is wrong. The page gets each row when it is done, and
keeps those of other operations and backends. Linux or macOS only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # processes are forked, which takes a parent without threads
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from PIL import Image

import vit_keras
from vit_keras import checkpoints, training, visualize, vit
from vit_keras.cli import main as command_line

from .trials import FOUND, FULL, INTERRUPTED, KILLED, Child, Operation, Trial, small_disk

BODY = b"PK\x03\x04" + random.Random(0).randbytes(200_000)
PIECES = 20


# --- what is done -------------------------------------------------------------------------------------------------


def run_command(*arguments: Any) -> int:
    return command_line([str(argument) for argument in arguments])


def in_python(function: Callable[[], Any]) -> int:
    """Return the exit status of a call that has no command: as a program that reports errors would."""
    try:
        function()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(error)
        return 1
    return 0


def get(inputs: Path, folder: Path, version: int) -> int:
    os.environ["VIT_KERAS_HOME"] = str(folder)
    return run_command("download", (inputs / "url").read_text())


def convert(suffix: str, inputs: Path, folder: Path, version: int) -> int:
    return run_command("convert", inputs / f"{version}.safetensors", folder / f"out{suffix}")


def save(inputs: Path, folder: Path, version: int) -> int:
    return in_python(lambda: checkpoints.save_weights(model(version), folder, "huggingface"))


def embed(suffix: str, inputs: Path, folder: Path, version: int) -> int:
    weights = inputs / f"{version}.safetensors"
    return run_command("embed", inputs / "pictures", "--weights", weights, "-o", folder / f"out{suffix}")


def decode(inputs: Path, folder: Path, version: int) -> int:
    options = {"cache": folder, "shuffle": False, "progress": False}
    return in_python(lambda: training.image_folder(inputs / "pictures", 32, **options).arrays())


def explore(inputs: Path, folder: Path, version: int) -> int:
    return in_python(lambda: visualize.explorer(model(version), np.zeros((32, 32, 3), "uint8"), path=folder / "a.html"))


def evaluate(inputs: Path, folder: Path, version: int) -> int:
    return run_command("evaluate", inputs / f"{version}.keras", inputs / "pictures", "-o", folder / "report.html")


def export(suffix: str, inputs: Path, folder: Path, version: int) -> int:
    return in_python(lambda: vit_keras.export(model(version), folder / f"out{suffix}", check=False))


def finetune(inputs: Path, folder: Path, version: int) -> int:
    options = ("--epochs", 3, "--batch-size", 8, "--set", "learning_rate=0.003", "-o", folder)
    return run_command("finetune", inputs / "pictures", "--model", inputs / "1.keras", *options)


def bytes_here(folder: Path) -> int:
    """Return the bytes of a download that another call can use."""
    found = [path for path in folder.rglob("ViT.bin*") if path.suffix in (".bin", ".part")]
    return max((path.stat().st_size - (path.suffix == ".part") for path in found), default=0)


def bytes_used(said: str, asked: list[int]) -> int:
    return asked[0] if asked else len(BODY)


def epochs_here(folder: Path) -> int:
    if (folder / "model.keras").exists():
        return 3
    state = folder / ".state" / "state.json"
    return len(json.loads(state.read_text())["history"].get("loss", ())) if state.exists() else 0


def epochs_used(said: str, asked: list[int]) -> int:
    found = re.search(r"Continuing after epoch (\d)", said)
    return 3 if "has a finished run" in said else int(found[1]) if found else 0


_DOWNLOAD = {"call": get, "older": False, "finals": "*/ViT.bin", "kept": bytes_here, "used": bytes_used}
OPERATIONS = [
    Operation("download", **_DOWNLOAD),
    Operation("download, two processes", twins=True, **_DOWNLOAD),
    Operation("convert to .npz", functools.partial(convert, ".npz")),
    Operation("convert to .npz, two processes", functools.partial(convert, ".npz"), twins=True),
    Operation("convert to .safetensors", functools.partial(convert, ".safetensors")),
    Operation("convert to .keras", functools.partial(convert, ".keras")),
    Operation("save_weights to a Hugging Face folder", save, one=True),
    Operation("embed to .npz", functools.partial(embed, ".npz")),
    Operation("embed to .parquet", functools.partial(embed, ".parquet")),
    Operation("image_folder(cache=…)", decode, older=False),
    Operation("image_folder(cache=…), two processes", decode, older=False, twins=True),
    Operation("explorer(…).save", explore),
    Operation("evaluate -o report.html", evaluate),
    *(
        Operation(f"export to {name}", functools.partial(export, suffix), finals="**/*", one=True)
        for name, suffix, written in (
            ("ONNX", ".onnx", True),
            ("OpenVINO", ".xml", True),
            ("SavedModel", "", keras.backend.backend() == "tensorflow"),  # elsewhere in a process of its own
        )
        if written
    ),
    Operation("finetune", finetune, older=False, exact=1e-6, kept=epochs_here, used=epochs_used),
]


def model(version: int) -> keras.Model:
    made = vit.build_model(32, 16, 1, 32, 2, "tiny", 64, classes=2)
    for variable in made.weights:
        variable.assign(np.random.default_rng(version).normal(size=variable.shape) * 0.1)
    made.labels = ("cat", "dog") if version else ("dog", "cat")
    return made


def make_inputs(inputs: Path) -> int:
    rng = np.random.default_rng(0)
    for n in range(24):
        path = inputs / "pictures" / ("cat", "dog")[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 128, (32, 32, 3), "uint8") + np.uint8(n % 2 * 60)).save(path)
    for version in (0, 1):
        made = model(version)
        made.save(inputs / f"{version}.keras")
        checkpoints.save_weights(made, inputs / f"{version}.safetensors")
    return 0


class Handler(BaseHTTPRequestHandler):
    """A server that sends slowly, knows ranges, and notes the first byte of each request."""

    def do_GET(self):
        start = int(re.sub(r"\D", "", self.headers["Range"] or "0"))
        with open(self.server.asked, "a") as file:
            file.write(f"{start}\n")
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.send_header("ETag", '"one"')
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for place in range(start, len(BODY), len(BODY) // PIECES):
                self.wfile.write(BODY[place : place + len(BODY) // PIECES])
                time.sleep(0.002)

    def log_message(self, *args):
        pass


# --- the table ----------------------------------------------------------------------------------------------------


def measure(operation: Operation, kills: int, inputs: Path, seed: int) -> tuple[list[str], list[str]]:
    """Return a row of the table, and what went wrong in detail."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as work:
        work = Path(work).resolve()
        (work / "asked").touch()
        with serve(inputs, work / "asked"), small_disk(work / "disk") as real_disk:
            trial = Trial(operation, inputs, work, random.Random(f"{seed} {operation.name}"), real_disk)
            for kind, disturb, wanted in (
                (KILLED, trial.kill, kills),
                (INTERRUPTED, trial.interrupt, -(-kills // 3)),
                (FULL, trial.fill, -(-kills // 3)),
            ):
                for number in range(10 * wanted):  # some come too late
                    if trial.counts[kind] >= wanted:
                        break
                    disturb(number % wanted, wanted)
            trial.finish()
    numbers = [*trial.counts.values(), *trial.found.values(), round(time.monotonic() - started)]
    return [operation.name, *map(str, numbers), f"{date.today():%Y-%m-%d}", keras.__version__], trial.details


@contextlib.contextmanager
def serve(inputs: Path, asked: Path):
    """Serve the file to download from a process of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = asked
    (inputs / "url").write_text(f"http://127.0.0.1:{server.server_port}/ViT.bin")
    child = Child(lambda: server.serve_forever() or 0)
    server.socket.close()
    try:
        yield
    finally:
        child.signal(signal.SIGKILL)
        child.wait()


COLUMNS = ("operation", KILLED, INTERRUPTED, FULL, *FOUND, "seconds", "date", "Keras")


def page(rows: dict[str, list[str]]) -> str:
    """Return the table of the backend, with its operations in the order of this script."""
    names = sorted(rows, key=[operation.name for operation in OPERATIONS].index)
    table = [COLUMNS, ["---", *["--:"] * (len(COLUMNS) - 1)], *(rows[name] for name in names)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in table)
    return f"{lines}\n\nPython {platform.python_version()}, {platform.system()}\n"


def marks() -> tuple[str, str]:
    """Return the lines of a page between which the table of this backend is."""
    begin, end = (f"<!-- {word} of the table of {keras.backend.backend()} -->\n" for word in ("begin", "end"))
    return begin, end


def read(output: Path | None) -> dict[str, list[str]]:
    """Return the rows of a page's table of this backend, by operation."""
    text = output.read_text(encoding="utf-8") if output and output.exists() else ""
    begin, end = marks()
    lines = text.partition(begin)[2].partition(end)[0].splitlines()
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| "))
    known = {operation.name for operation in OPERATIONS}
    return {row[0]: row for row in rows if row[0] in known and len(row) == len(COLUMNS)}


def write(output: Path, text: str) -> None:
    """Replace the table of this backend in a page, or add it at the end."""
    begin, end = marks()
    before, _, rest = (output.read_text(encoding="utf-8") if output.exists() else "").partition(begin)
    output.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills for each operation; default: 100")
    parser.add_argument("--only", help="beginnings of the names of operations, with commas; default: all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments; default: 0")
    parser.add_argument("--output", type=Path, help="Markdown file to write the table to")
    arguments = parser.parse_args()
    beginnings = tuple((arguments.only or "").split(","))
    chosen = [operation for operation in OPERATIONS if operation.name.startswith(beginnings)]
    if not chosen or arguments.kills < 1:
        parser.error(f"--kills must be positive, and --only name some of: {'; '.join(o.name for o in OPERATIONS)}")
    os.environ["no_proxy"] = "127.0.0.1"
    rows, details = read(arguments.output), []
    with tempfile.TemporaryDirectory(prefix="faults-") as inputs:
        inputs = Path(inputs).resolve()
        status, said = Child(lambda: make_inputs(inputs)).wait()
        if status:
            raise RuntimeError(said)
        for operation in chosen:
            row, problems = measure(operation, arguments.kills, inputs, arguments.seed)
            print(" | ".join(row), flush=True)
            print("\n".join(problems), end="\n" if problems else "", flush=True)
            details += problems
            rows[operation.name] = row
            if arguments.output is not None:
                write(arguments.output, page(rows))
    print(f"\n{page(rows)}")
    return 1 if details else 0


if __name__ == "__main__":
    sys.exit(main())
