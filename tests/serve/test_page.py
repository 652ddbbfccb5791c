"""The page of the server, in Chromium."""

import json

import numpy as np
import pytest
from ask_server import ask, random_picture
from PIL import Image

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")

from vit_keras import serve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tiny):
    with serve.running(tiny, max_mb=2) as address:
        yield address


@pytest.fixture
def tab(browser, address):
    """The page; at the end it has asked nobody but the server, and printed no error."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab, requests, errors = context.new_page(), [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    harmless = ("status of 4", "willReadFrequently")  # a refused picture, and the pixels that these tests read
    tab.on(
        "console",
        lambda message: None if any(each in message.text for each in harmless) else errors.append(message.text),
    )
    tab.goto(address)
    yield tab
    context.close()
    assert errors == [] and all(url.startswith((address, "data:")) for url in requests)


def pixel(tab, x, y):
    """The color of the map over a place of the picture, as shares of it."""
    return tab.evaluate(
        """([x, y]) => { const c = document.getElementById('map'), p = document.getElementById('picture');
        const a = c.getBoundingClientRect(), b = p.getBoundingClientRect();
        const u = (b.left + x * b.width - a.left) / a.width, v = (b.top + y * b.height - a.top) / a.height;
        if (u < 0 || v < 0 || u >= 1 || v >= 1) return null;
        const data = c.getContext('2d').getImageData(Math.floor(u * c.width), Math.floor(v * c.height), 1, 1).data;
        return [...data]; }""",
        [x, y],
    )


def test_a_person_drops_a_picture(tab, address, tmp_path):
    Image.fromarray(random_picture(64, 64)).save(tmp_path / "a.png")
    expected = ask(address, "/predict?attention=1", (tmp_path / "a.png").read_bytes())[2]
    tab.set_input_files("#file", tmp_path / "a.png")
    tab.wait_for_selector("#list li")
    texts = tab.locator("#list li").all_inner_texts()
    assert [text.split("\n")[0] for text in texts] == [each["label"] for each in expected["predictions"]]
    assert f"{expected['predictions'][0]['probability']:.1%}" in texts[0].replace(" %", "%")
    assert tab.locator("#status").inner_text().startswith("64 × 64 pixels")
    assert pixel(tab, 0.1, 0.5) is None  # the model does not see the border
    patches = [pixel(tab, x, y) for y in (0.4, 0.6) for x in (0.4, 0.6)]
    assert np.argmax(np.sum(patches, axis=1)) == np.argmax(expected["attention"]["rollout"])
    tab.select_option("#layer", "1")
    tab.select_option("#head", "1")
    patches = [pixel(tab, x, y) for y in (0.4, 0.6) for x in (0.4, 0.6)]
    sums = np.sum(patches, axis=1)
    assert sums[np.argmax(expected["attention"]["layers"][1][1])] == sums.max()  # two may have the brightest color
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_person_drops_something_else(tab, tmp_path):
    (tmp_path / "a.png").write_text("hello")
    tab.set_input_files("#file", tmp_path / "a.png")
    tab.wait_for_selector("#status.bad")
    assert "are not an image" in tab.locator("#status").inner_text()
    Image.new("RGB", (30, 20), "red").save(tmp_path / "b.png")
    data = json.dumps(list((tmp_path / "b.png").read_bytes()))
    tab.evaluate(
        f"""() => {{ const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array({data})], "b.png"));
        document.body.dispatchEvent(new DragEvent("drop", {{ dataTransfer: transfer, bubbles: true }})); }}"""
    )
    tab.wait_for_selector("#list li")
    assert tab.locator("#list li span").first.inner_text() == "red"
    assert tab.locator("#status.bad").count() == 0
