"""The page that computes. A made-up onnxruntime-web is in it, which returns what it is told; slow: the real one."""

import hashlib
import http.server
import io
import json
import tarfile

import keras
import numpy as np
import pytest
from export_cases import CASES, tiny
from hub import running
from PIL import Image
from support import ROOT

import vit_keras
from vit_keras import preprocess, vit
from vit_keras.checkpoints.cache import cached_path
from vit_keras.export import report, runtimes, web
from vit_keras.export.plan import Plan
from vit_keras.preprocess.images import read, resize_image

pytestmark = pytest.mark.any_backend
LABELS = ("</script><b>tabby</b>", "zebra & co", "<!--")
SCRIPT = """
const env = { wasm: {}, versions: { web: "of a test" } };
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
const InferenceSession = { create: async (model) => {
  window.inside = [new TextDecoder().decode(env.wasm.wasmBinary), model.length];
  return { run: async ({ images }) => {
    window.images = images;
    return Object.fromEntries(Object.entries(window.outputs).map(([name, [values, dims]]) =>
      [name, { data: Float32Array.from(values), dims }]));
  } };
} };
export{env as env,Tensor as Tensor,InferenceSession as InferenceSession};
//# sourceMappingURL=x.map
"""


def package(script=SCRIPT, program=b"a program"):
    """A package as the registry has it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in ((web.SCRIPT, script.encode()), (web.PROGRAM, program)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """The package of a made-up onnxruntime-web, which is found."""
    pytest.importorskip("onnx")
    data = package()
    monkeypatch.setattr(web, "BYTES", len(data))
    monkeypatch.setattr(web, "SHA256", hashlib.sha256(data).hexdigest())
    (tmp_path / "found").mkdir()
    path = tmp_path / "found" / web.URL.rpartition("/")[2]
    path.write_bytes(data)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(path.parent))
    return path


@pytest.fixture
def onnxruntime_web(monkeypatch):
    """The real one, which `make test-slow` downloads."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VIT_KERAS_HOME", str(ROOT / ".pytest_cache" / "downloads"))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    if not cached_path(web.URL).is_file():
        pytest.skip("onnxruntime-web is not there: make test-slow downloads it")


@pytest.fixture
def opened(browser):
    """Open a page without a network: `opened(path)`. At the end it has asked for nothing, and printed no error."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
    requests, errors = [], []

    def open(path, script=""):
        tab = context.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.add_init_script(script)
        tab.goto(path.as_uri())
        return tab

    yield open
    context.close()
    assert errors == [] and {url.rpartition(".")[2] for url in requests if not url.startswith("data:")} == {"html"}


def picture(height, width, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (6, 7, 3)).astype("uint8")
    noise = np.random.default_rng(seed).integers(0, 40, (height, width, 3)).astype("uint8")
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)) // 2 + noise


def answer(tab, path):
    """What the page makes of a picture, and what its session was given."""
    tab.set_input_files("#file", path)
    tab.wait_for_selector("#list li, #status.bad")
    assert tab.locator("#status.bad").count() == 0, tab.locator("#status").inner_text()
    shape, values = tab.evaluate("[window.images.dims, Array.from(window.images.data)]")
    return np.array(values, "uint8").reshape(shape)[0]


def written(plan, path):
    web.write(plan, path)
    return path


MODELS = {
    "token": tiny,
    "patches": lambda: tiny(pooling="gap", registers=2),
    "two": lambda: tiny(pooling="token+dist", distillation_token=True),
    "wide": lambda: tiny(image_size=(32, 64), patch_size=(16, 8)),
    "narrow": lambda: tiny(image_size=None, position_grid=(2, 2), drop_remainder=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_labels_and_attention_are_the_models(tmp_path, made_up, opened, name):
    model = MODELS[name]()
    plan = Plan.of(model, labels=LABELS, top=2, attention=True)
    pixels = picture(*(plan.image_size or (160, 31)))  # of any size: the rest of a patch is cut off
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (outputs,) = report._expected(plan, [model.preprocessing(pixels)])
    told = {key: [value.ravel().tolist(), value.shape] for key, value in outputs.items()}
    tab = opened(written(plan, tmp_path / "a.html"), f"window.outputs = {json.dumps(told)};")
    np.testing.assert_array_equal(answer(tab, tmp_path / "a.png"), pixels)
    best = np.argsort(-outputs["probabilities"][0])[:2]
    shown = [text.split("\n") for text in tab.locator("#list li").all_inner_texts()]
    assert [text[0] for text in shown] == [LABELS[n] for n in best]
    assert shown[0][1] == f"{100 * outputs['probabilities'][0][best[0]]:.1f} %"
    found = tab.evaluate("attention")
    recording = vit_keras.visualize.record(model, pixels)
    rollout = vit_keras.visualize.attention_rollout(recording)
    assert found["box"] == [0, 0, 1, 16 / 31 if name == "narrow" else 1] and found["grid"] == list(rollout.shape[1:])
    np.testing.assert_allclose(found["rollout"], rollout.ravel(), atol=1e-5)
    layer = vit_keras.visualize.cls_attention(recording, 0)[0]
    np.testing.assert_allclose(found["layers"][0], layer.reshape(2, -1), atol=1e-5)
    assert tab.evaluate("[document.documentElement.scrollWidth <= innerWidth, window.inside[0]]") == [True, "a program"]


@pytest.mark.parametrize(
    ("interpolation", "crop", "mode"),
    [
        ("bilinear", None, "center"),
        ("bilinear_antialias", 0.875, "squash"),
        ("bicubic_antialias", 0.9, "center"),
        ("lanczos", 1.0, "center"),
    ],
)
def test_pictures_are_resized_and_seen_as_in_python(tmp_path, made_up, opened, interpolation, crop, mode):
    fields = {"image_size": 32, "interpolation": interpolation, "crop": crop, "crop_mode": mode}
    model = tiny()
    model.preprocessing = preprocess.Preprocessing(**fields)
    tab = opened(written(Plan.of(model, attention=True), tmp_path / "a.html"))
    score = np.full((1, 2, 5, 5), 0.2).ravel().tolist()
    tab.evaluate(f"window.outputs = {{probabilities: [[0.1, 0.7, 0.2], [1, 3]], attention_0: [{score}, [1, 2, 5, 5]]}}")
    for size in ((90, 61), (20, 300), (31, 33)):
        pixels = picture(*size)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        tab.evaluate("$('list').replaceChildren()")
        found = answer(tab, tmp_path / "a.png")
        (height, width), (top, left) = model.preprocessing.geometry(size, (32, 32))
        across = pixels if interpolation == "bilinear" else resize_image(pixels, (size[0], width), interpolation)
        wanted = resize_image(across, (height, width), interpolation)
        assert found.shape == wanted.shape
        assert np.abs(found.astype(int) - wanted).max() <= 1
        assert np.mean(found != wanted) < 0.03  # where a pixel lies half-way
        box = [top / height, left / width, 32 / height, 32 / width]
        assert tab.evaluate("attention.box") == (pytest.approx(box) if crop else [0, 0, 1, 1])


def test_texts_are_escaped(tmp_path, made_up):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
    model.name = "<title><script>alert(1)<script>"
    page = written(Plan.of(model, labels=LABELS), tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 6
    assert "<title>&lt;title&gt;" in page and "<b>tabby" not in page and "<script>alert" not in page
    assert "connect-src 'none'" in page and "sourceMappingURL" not in page
    assert "Permission is hereby granted" in page
    with pytest.raises(ValueError, match="page"):
        vit_keras._internal.html_page.picture_page("a", "", modules=("const a = '</Script>'",))


def test_a_page_has_attention_unless_told(tmp_path, made_up, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("PATH", str(tmp_path))  # where no browser is
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    found = vit_keras.export(tiny(), tmp_path / "a.html")
    assert found.metadata["outputs"][-1] == "attention_1"
    assert found.runtime.startswith("onnxruntime ") and all(each.passes for each in found.comparisons)
    assert "The page was not run: " in str(found) and "in onnxruntime instead" in str(found)
    without = vit_keras.export(tiny(), tmp_path / "b.html", attention=False, check=False)
    assert without.metadata["outputs"][-1] == "features"
    image, shared = keras.Input((32, 32, 3)), tiny(include_top=False)
    siamese = keras.Model(image, keras.layers.Dense(3)(shared(image) + shared(image * 0.5)))
    for model in (CASES["mixer"](), siamese):
        found = vit_keras.export(model, tmp_path / "b.html", check=False)
        assert found.metadata["outputs"][-1] == "features"


def test_a_page_takes_pictures(tmp_path, made_up, monkeypatch):
    with pytest.raises(ValueError, match="preprocessing=False"):
        web.write(Plan.of(tiny(), preprocessing=False), tmp_path / "a.html")
    with pytest.raises(ValueError, match="5 channels"):
        web.write(Plan.of(tiny(channels=5)), tmp_path / "a.html")
    monkeypatch.setattr(web, "LARGEST", 1000)
    with pytest.raises(ValueError, match="too large"):
        web.write(Plan.of(tiny()), tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_where_the_package_comes_from(tmp_path, made_up, monkeypatch):
    data = made_up.read_bytes()
    assert web.onnxruntime_web() == (SCRIPT, b"a program")
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(made_up))
    assert web.onnxruntime_web() == (SCRIPT, b"a program")
    made_up.write_bytes(data + b"x")
    with pytest.raises(ValueError, match="SHA-256"):
        web.onnxruntime_web()
    monkeypatch.delenv("VIT_KERAS_WEIGHTS")
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="VIT_KERAS_OFFLINE"):
        web.onnxruntime_web()
    monkeypatch.delenv("VIT_KERAS_OFFLINE")
    sent = [data[:-1] + b"?", data]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(sent.pop(0))

        def log_message(self, *_):
            pass

    with running(http.server.HTTPServer(("127.0.0.1", 0), Handler)) as server:
        monkeypatch.setattr(web, "URL", f"http://127.0.0.1:{server.server_port}/ort.tgz")
        with pytest.raises(ValueError, match="SHA-256"):
            web.onnxruntime_web()
        assert web.onnxruntime_web() == (SCRIPT, b"a program")
        assert web.onnxruntime_web() == (SCRIPT, b"a program") and sent == []  # it is kept


def test_the_onnx_file_in_a_page(tmp_path, made_up):
    pytest.importorskip("onnxruntime")
    path = written(Plan.of(tiny()), tmp_path / "a.html")
    inside = runtimes.OnnxOfPage(path, "there is no browser")
    outputs = inside(np.zeros((1, 32, 32, 3), inside.dtype))
    assert (inside.dtype, [*outputs]) == ("uint8", ["logits", "probabilities", "features"])
    path.write_text("<p>A page of somebody else", encoding="utf-8")
    with pytest.raises(ValueError, match="model"):
        runtimes.OnnxOfPage(path, "there is no browser")


@pytest.mark.slow
def test_the_small_model_in_a_browser(tmp_path, onnxruntime_web, opened, shared):
    model = vit_keras.open_model("vit_cifar10")
    pictures = sorted((shared / "images").glob("*.jpg"))[:6]
    found = vit_keras.export(model, tmp_path / "a.html", check=pictures)
    assert "onnxruntime-web 1.30.0 in Chromium" in found.runtime and found.bytes < 12e6
    check_photographs(model, opened(tmp_path / "a.html"), pictures, tmp_path)


def check_photographs(model, tab, pictures, folder):
    """A page says of files what the model predicts."""
    names = vit_keras.anatomy.class_names(model)
    for path in pictures:
        Image.fromarray(read(path, None)).save(folder / "a.png")  # another decoder of JPEG has other gray levels
        tab.evaluate("$('list').replaceChildren()")
        tab.set_input_files("#file", folder / "a.png")
        tab.wait_for_selector("#list li")
        wanted = vit_keras.anatomy.probabilities(model, model.predict(model.preprocess(path), verbose=0))[0]
        shown = [text.split("\n") for text in tab.locator("#list li").all_inner_texts()]
        assert [text[0] for text in shown[:1]] == [names[int(wanted.argmax())]]
        for label, share in shown:
            assert float(share.split()[0]) / 100 == pytest.approx(wanted[names.index(label)], abs=0.003)
    assert tab.evaluate("attention.grid[0]") > 1
