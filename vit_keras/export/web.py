"""Export a model to a single HTML page, with the model as ONNX, onnxruntime-web, and a form for an image.

The page works offline, from a disk. The runtime in it is downloaded once from onnxruntime-web's package on npm, and is
kept in the cache.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from .. import anatomy
from .._internal import html_page
from .._internal.atomic import workspace
from .._internal.validate import expanded
from ..checkpoints.download import download
from ..preprocess import Preprocessing
from .onnx import write as write_onnx
from .plan import Plan

__all__ = ["onnxruntime_web", "write"]

VERSION = "1.30.0"
URL = f"https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-{VERSION}.tgz"
BYTES, SHA256 = 33_106_585, "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
SCRIPT, PROGRAM = "package/dist/ort.wasm.bundle.min.mjs", "package/dist/ort-wasm-simd-threaded.wasm"
LICENSE = """Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""
LARGEST = 2**29 - 24
"""Characters of the longest text that Chromium holds."""


def write(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a page with a model in it."""
    if plan.preprocessing is None or plan.image_shape[3] != 3:
        received = "preprocessing=False" if plan.preprocessing is None else f"{plan.image_shape[3]} channels"
        raise ValueError(
            f"A page takes images of 1 or 3 channels, with preprocessing=True. Received: {received}. Choose the "
            "format onnx."
        )
    script, program = onnxruntime_web()
    path = Path(path)
    with workspace(path.parent) as folder:
        write_onnx(plan, folder / "model.onnx")
        if len(list(folder.iterdir())) > 1:
            raise _too_large(plan)
        model = _pack((folder / "model.onnx").read_bytes())
    if len(model) > LARGEST:
        raise _too_large(plan)
    page = html_page.picture_page(
        plan.model.name,
        _footer(plan),
        blocks="\n".join(
            (
                _block("about", "application/json", html_page.to_json(_about(plan, plan.preprocessing))),
                _block("wasm", "application/octet-stream", _pack(program)),
                _block("model", "application/octet-stream", model),
            )
        ),
        modules=(_as_module(script), Path(__file__).with_name("web.js").read_text(encoding="utf-8")),
    )
    path.write_text(page, encoding="utf-8", newline="\n")
    return []


def onnxruntime_web() -> tuple[str, bytes]:
    """Return the script and the WebAssembly program of onnxruntime-web, after downloading its package if need be.

    It is searched for in the files and folders that the environment variable `VIT_KERAS_WEIGHTS` names and in the
    cache.
    """
    name = URL.rpartition("/")[2]
    places = [expanded(place) for place in os.environ.get("VIT_KERAS_WEIGHTS", "").split(os.pathsep) if place]
    files = [place if place.name == name else place / name for place in places]
    path = next(filter(Path.is_file, files), None) or download(URL, size=BYTES, sha256=SHA256)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(
            f"{path} has the SHA-256 {found} where {SHA256} was expected: it is not the published file. Delete it, or "
            f"put there what is at {URL}"
        )
    with tarfile.open(path) as archive:
        script, program = (
            archive.extractfile(member).read()  # pyright: ignore[reportOptionalMemberAccess]  (the hash tells of both)
            for member in (SCRIPT, PROGRAM)
        )
    return script.decode(), program


def _as_module(script: str) -> str:
    """Return a module that puts what it exports into `window.onnxruntime`, where another module of a page finds it.

    Example:
        >>> _as_module("const a=1;export{a as env,a as default};")
        'const a=1;window.onnxruntime={env:a,default:a};'
    """
    start = script.rindex("export{")
    names, _ = script[start + len("export{") :].split("}", 1)
    pairs = (each.split(" as ") for each in names.split(","))
    return f"{script[:start]}window.onnxruntime={{{','.join(f'{name}:{own}' for own, name in pairs)}}};"


def _about(plan: Plan, preprocessing: Preprocessing) -> dict[Any, Any]:
    """Return the settings of a model that the page needs to show its outputs."""
    first = {"size": preprocessing.image_size, "crop": preprocessing.crop, "crop_mode": preprocessing.crop_mode}
    return {
        "task": anatomy.task(plan.model),
        "labels": plan.labels,
        "top": plan.top,
        "first": {**first, "interpolation": preprocessing.interpolation} if preprocessing.image_size else None,
        **plan.patches(),
    }


def _footer(plan: Plan) -> str:
    about = plan.metadata_json()
    source, license = (html_page.escape(about.get(key) or "unknown") for key in ("source", "license"))
    based_on = f"based on {html_page.escape(about['origin'])}, " if about.get("origin") else ""
    versions = html_page.escape(json.dumps(about.get("versions")))
    return f"""<p>The model computes in this page. The image does not leave it, and nothing is asked of a network.</p>
    <details><summary>About this page</summary>
    <p>Weights: {based_on}{source}. Their license: {license}. SHA-256: <code>{about.get("weights_sha256")}</code></p>
    <p>Written by vit_keras: <code>{versions}</code></p>
    <p>onnxruntime-web {VERSION} is in it, under the MIT license below; what that contains is named in its
      <a href="https://github.com/microsoft/onnxruntime/blob/v{VERSION}/ThirdPartyNotices.txt">notices</a>.</p>
    {"".join(f"<p>{html_page.escape(paragraph)}</p>" for paragraph in LICENSE.split(chr(10) * 2))}
    </details>"""


def _block(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>'


def _pack(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def _too_large(plan: Plan) -> ValueError:
    return ValueError(f"The model {plan.model.name!r} is too large for a page, which holds about 400 MB. Choose onnx.")
