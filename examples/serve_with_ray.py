"""Serve an exported ONNX file on a Ray cluster: two replicas, each with a model of its own.

A replica that is lost is replaced. A client asks again for the requests that it was computing. This package is not
needed: the file holds preprocessing and names of classes. Needs `pip install "ray[serve]" onnxruntime pillow`.

MODEL=model.onnx python examples/serve_with_ray.py
curl -F file=@cat.jpg -F file=@dog.jpg http://127.0.0.1:8000/predict
"""

import json
import os

import numpy as np
import onnxruntime
from PIL import Image, ImageOps
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

Image.MAX_IMAGE_PIXELS = 25_000_000  # Pillow refuses images of more than twice as many


@serve.deployment(num_replicas=2, max_ongoing_requests=4, ray_actor_options={"num_cpus": 1})
class Classifier:
    """Answers forms with images in the field `file`."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options)
        self.labels = json.loads(self.session.get_modelmeta().custom_metadata_map["labels"])

    def answer(self, file):
        """Return the five most probable classes of an image."""
        image = ImageOps.exif_transpose(Image.open(file, formats=["JPEG", "PNG"])).convert("RGB")
        (scores,) = self.session.run(["probabilities"], {"images": np.asarray(image)[None]})  # the file resizes
        return [{"label": self.labels[n], "probability": float(scores[0, n])} for n in np.argsort(-scores[0])[:5]]

    async def __call__(self, request: Request):
        """Return an answer or an error for each image."""
        found = []
        async with request.form(max_files=16) as form:
            for file in form.getlist("file"):
                try:
                    found.append(self.answer(file.file))
                except Exception as error:  # only this image has one
                    found.append({"error": str(error)})
        return JSONResponse(found)


app = Classifier.bind(os.path.abspath(os.environ.get("MODEL", "model.onnx")))

if __name__ == "__main__":
    serve.run(app, route_prefix="/predict", blocking=True)
