"""Write the folders that serving engines load as they are: `python examples/serve_with_engines.py MODEL models`.

models/triton/vit/config.pbtxt, labels.txt, 1/model.onnx    Triton
models/openvino/vit/1/model.onnx                            OpenVINO Model Server
models/tensorflow/vit/1/saved_model.pb …                    TensorFlow Serving

docs/serving.md has a command and a client for each.
"""

import json
import shutil
import sys
from pathlib import Path

import vit_keras

CONFIG = """backend: "onnxruntime"
max_batch_size: 16
input [{ name: "images", data_type: TYPE_UINT8, dims: [ -1, -1, 3 ] }]
output [{ name: "probabilities", data_type: TYPE_FP32, dims: [ %d ], label_filename: "labels.txt" }]
dynamic_batching { max_queue_delay_microseconds: 2000 }
"""


def main(name, folder, version="1"):
    """Export a model for three engines."""
    model, root = vit_keras.open_model(name), Path(folder)
    triton, openvino, tensorflow = (root / engine / "vit" for engine in ("triton", "openvino", "tensorflow"))
    for path in (triton, openvino, tensorflow):
        (path / version).mkdir(parents=True, exist_ok=True)
    vit_keras.export(model, triton / version / "model.onnx")
    shutil.copy(triton / version / "model.onnx", openvino / version / "model.onnx")
    vit_keras.export(model, tensorflow / version)
    about = json.loads((tensorflow / version / "assets.extra/vit_keras.json").read_text(encoding="utf-8"))
    labels = about["labels"] or [f"class {n}" for n in range(about["classes"])]
    (triton / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    (triton / "config.pbtxt").write_text(CONFIG % len(labels), encoding="utf-8")
    for report in root.rglob("*.report.json"):  # engines take it for a model
        report.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
