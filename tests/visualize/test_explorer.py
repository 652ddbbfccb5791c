"""The HTML explorer: what is stored, how large it gets, and the page itself in a real browser without a network."""

import base64
import contextlib
import dataclasses
import gzip
import html
import io
import json
import re
import warnings
from pathlib import Path
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
from PIL import Image
from readable import contrasts

from vit_keras import visualize, vit
from vit_keras.visualize.explore import explorer, fit
from vit_keras.visualize.explore.fit import plans
from vit_keras.visualize.explore.pack import encode, pack
from vit_keras.visualize.recording import Recording

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> &amp; {{meta}} \u2028 'cat'"


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype("float32")


def recording(layers=3, images=1, heads=2, grid=(3, 5), prefix=("cls", "reg0"), width=16, spread=2.0, seed=0, **fields):
    """Attention as of a trained model: some tokens are near, some draw all others."""
    random = np.random.default_rng(seed)
    tokens = len(prefix) + grid[0] * grid[1]
    logits = random.normal(0, spread, (layers, images, heads, tokens, tokens))
    logits += random.normal(0, spread, (layers, images, heads, 1, tokens))
    readout = np.zeros((images, tokens), "float32")
    readout[:, 0 if prefix else slice(None)] = 1 if prefix else 1 / tokens
    pictures = [random.integers(0, 255, (6, 10, 3), "uint8").repeat(12, 0).repeat(12, 1) for _ in range(images)]
    given = {
        "attention": softmax(logits),
        "features": random.normal(size=(images, tokens, width)).astype("float32"),
        **fields,
    }
    return Recording(tuple(pictures), grid, prefix, tuple(range(layers)), (8, 8), readout, **given)


def parts(page):
    """The data and the blocks of a page."""
    meta = json.loads(re.search(r'<script type="application/json" id="meta">(.*?)</script>', page, re.DOTALL)[1])
    found = re.findall(r'<script type="application/octet-stream" id="(.*?)">(.*?)</script>', page)
    return meta, {name: base64.b64decode(data) for name, data in found}


def decode(codes, maxima):
    """What the page reads from `encode`."""
    return np.square(codes.astype("float32") / 255) * maxima[..., None]


def unpack(packed, shape):
    """What the page reads from `pack`."""
    data, size = gzip.decompress(packed), 4 * shape[0] * shape[1]
    maxima = np.frombuffer(data[:size], "<f4").reshape(shape[:2])
    codes = np.add.accumulate(np.frombuffer(data[size:], "uint8").reshape(shape), axis=1, dtype="uint8")
    return decode(codes, maxima)


def stored(page, view=0):
    """Attention as a page has it: a list over the layers, (heads, queries, keys)."""
    meta, blocks = parts(page)
    source = meta["sources"][meta["views"][view]["source"]]
    down, across = source["grid"]
    tokens = len(source["prefix"]) + down * across
    queries = tokens
    return [
        unpack(blocks[f"attention-{view}-{k}"], (layer["heads"], queries, tokens))
        for k, layer in enumerate(source["layers"])
    ]


def variation(a, b):
    return 0.5 * np.abs(a - b).sum(-1)


# --- what is stored -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
def test_encoding_keeps_its_bound(spread):
    rows = softmax(np.random.default_rng(1).normal(0, spread, (400, 197)))
    bound = np.sqrt(197 * rows.max(-1)) / 510 + 197 * rows.max(-1) / 2 / 510**2
    errors = variation(decode(*encode(rows)), rows)
    assert (errors <= bound + 1e-6).all()
    assert errors.mean() < 0.0034  # the documented error of attention
    assert errors.max() < 0.0078


def test_packing_loses_nothing_more():
    rows = softmax(np.random.default_rng(2).normal(0, 2, (3, 7, 9)))
    np.testing.assert_array_equal(unpack(pack(rows), rows.shape), decode(*encode(rows)))
    assert pack(rows) == pack(rows)


def test_page_holds_all_layers_and_heads():
    rec = recording(images=2)
    page = explorer(rec).html
    for image in range(2):
        for k, layer in enumerate(stored(page, image)):
            assert variation(layer, rec.attention[k, image]).max() < 0.0078
    assert not parts(page)[0]["notes"]


def test_maps_of_the_output():
    values, projections = np.random.default_rng(0).normal(size=(3, 1, 2, 17, 4)), np.ones((3, 2, 4, 8))
    tokens = np.random.default_rng(1).normal(size=(4, 1, 17, 8))
    rec = recording(
        values=values, projections=projections, tokens=tokens, gradients=np.ones((3, 1, 2, 17, 17), "float32")
    )
    meta, blocks = parts(explorer(rec).html)
    maps = unpack(blocks["maps-0"], (3, 1, 15))[:, 0].reshape(3, 3, 5)
    assert [m["key"] for m in meta["views"][0]["maps"]] == ["output", "alti", "relevance"]
    wanted = [visualize.attention_rollout(rec), visualize.alti_rollout(rec), visualize.relevance_map(rec)]
    for found, exact in zip(maps, wanted):
        np.testing.assert_allclose(found, exact[0], atol=exact.max() / 255)  # two steps of the root near its top


def test_similarity_is_stored_in_bytes():
    rec = recording()
    meta, blocks = parts(explorer(rec).html)
    assert meta["views"][0]["similarity"]
    cosines = np.frombuffer(gzip.decompress(blocks["similarity-0"]), "uint8").reshape(17, 17) / 127.5 - 1
    unit = rec.features[0] / np.linalg.norm(rec.features[0], axis=-1, keepdims=True)
    np.testing.assert_allclose(cosines, unit @ unit.T, rtol=0, atol=0.004)


# --- size ---------------------------------------------------------------------------------------------------------


def b16(noise=0.14, **options):
    """ViT-B/16's attention at 224 pixels, which compresses as a trained model's does: to 0.72 of its bytes."""
    random = np.random.default_rng(0)
    row, column = np.divmod(np.arange(196), 14)
    distance = np.zeros((197, 197))
    distance[1:, 1:] = np.hypot(row[:, None] - row, column[:, None] - column)
    logits = random.normal(0, noise, (12, 1, 12, 197, 197)) + random.normal(0, 1, (12, 1, 12, 1, 197)) - 0.1 * distance
    options = {"layers": 1, "heads": 1, "grid": (14, 14), "prefix": ("cls",), "width": 64, **options}
    return dataclasses.replace(recording(**options), layers=tuple(range(12)), attention=softmax(logits))


@pytest.mark.slow
def test_b16_fits_with_all_heads():
    page = explorer(b16()).html
    meta, _ = parts(page)
    assert len(page.encode()) <= 6e6
    assert [layer["heads"] for layer in meta["sources"][0]["layers"]] == [12] * 12
    assert not meta["notes"]
    assert len(page) > 5e6  # it is no easy case


EMPTY = Path(fit.__file__).with_name("explorer.html").stat().st_size / 1e6  # the page without data, in MB


def test_order_of_reductions():
    rec = recording(layers=12, heads=6, grid=(9, 9), prefix=("cls",), width=8)
    seen = []
    for megabytes in (1, 0.4, 0.12, 0.1, 0.06, 0.05):
        page = explorer(rec, max_mb=EMPTY + megabytes).html
        assert len(page.encode()) <= (EMPTY + megabytes) * 1e6
        kept = parts(page)[0]["sources"][0]["layers"]
        seen.append((len(kept), sum(layer["heads"] > 1 for layer in kept)))
        assert kept[-1]["n"] == 11
        assert bool(parts(page)[0]["notes"]) == (seen[-1] != (12, 12))
    order = [(plan.layers, plan.heads) for plan in plans(12)]
    assert order[-1] == (1, 0)
    places = [order.index(plan) for plan in seen]
    assert places == sorted(places)
    assert seen[0] == (12, 12)
    assert seen[1][0] == 12 and 0 < seen[1][1] < 12  # heads first, from the first layers on
    assert seen[-1][0] < 12  # layers last


def test_reduced_attention_is_the_mean():
    rec = recording(layers=12, heads=6, grid=(9, 7), prefix=("cls",))
    page = explorer(rec, max_mb=EMPTY + 0.05).html
    meta, _ = parts(page)
    source = meta["sources"][0]
    assert source["layers"][0]["heads"] == 1
    assert "The heads are averaged in layer" in meta["notes"][0] and "max_mb" in meta["notes"][-1]
    mean = rec.attention[source["layers"][0]["n"], 0].mean(0)
    assert variation(stored(page)[0][0], mean).max() < 0.0078


def test_too_small_to_fit(tmp_path):
    with pytest.raises(ValueError, match="2 images .*max_mb=0.05"):
        explorer(recording(images=2), max_mb=0.05).save(tmp_path / "a.html")


@pytest.mark.parametrize("max_mb", [0, -1, True, "6", None])
def test_max_mb_is_a_number(max_mb):
    with pytest.raises(ValueError, match="max_mb"):
        explorer(recording(), max_mb=max_mb)


def test_large_pictures_become_smaller():
    rec = recording()
    large = (np.random.default_rng(0).integers(0, 255, (2000, 3000, 3), "uint8"),)
    page = explorer(dataclasses.replace(rec, images=large)).html
    uri = parts(page)[0]["pictures"][0]
    picture = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    assert picture.format == "JPEG" and picture.size == (768, 512)


def test_notebook_gets_less():
    page = explorer(b16())
    frame = page._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts allow-downloads"')
    assert len(frame.encode()) < 1.1e6 < len(page.html.encode())
    inner = html.unescape(re.search(r'srcdoc="(.*?)"', frame, re.DOTALL)[1])
    assert parts(inner)[0]["notes"]
    assert ".save(path)" in frame


def test_notebook_shows_as_many_pictures_as_fit():
    random = np.random.default_rng(0)
    pictures = tuple(random.integers(0, 255, (300, 300, 3), "uint8") for _ in range(20))
    frame = explorer(dataclasses.replace(recording(images=20), images=pictures))._repr_html_()
    assert len(frame.encode()) < 1.1e6
    shown = len(parts(html.unescape(re.search(r'srcdoc="(.*?)"', frame, re.DOTALL)[1]))[0]["views"])
    assert 0 < shown < 20
    assert f"of the first {shown} images" in frame


# --- the file -----------------------------------------------------------------------------------------------------


def test_names_cannot_break_out():
    labels = (HOSTILE,) * 4
    rec = recording(
        labels=labels,
        logits=np.eye(4, dtype="float32")[:1],
        target=np.array([2]),
        gradients=np.ones((3, 1, 2, 17, 17), "float32"),
    )
    page = explorer(rec, title=HOSTILE).html
    plain = explorer(dataclasses.replace(rec, labels=("a",) * 4), title="b").html
    for tag in ("<script", "</script", "<img", "<style"):
        assert page.count(tag) == plain.count(tag)
    meta, _ = parts(page)
    assert meta["title"] == HOSTILE
    assert meta["views"][0]["maps"][-1]["name"] == f"Relevance: {HOSTILE}"
    assert html.unescape(re.search("<title>(.*?)</title>", page)[1]) == HOSTILE


def test_file_asks_for_nothing():
    page = explorer(recording()).html
    assert not re.findall(
        r"https?:|//[a-z]+\.|@import|url\(|<link rel=\"stylesheet|<script src", page.replace("data:image/jpeg", "")
    )
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy


def test_save(tmp_path):
    path = tmp_path / "attention.html"
    page = explorer(recording(), path=path)
    assert path.read_text("utf-8") == page.html
    assert page.save(str(path)) == path
    assert [p.name for p in tmp_path.iterdir()] == ["attention.html"]


def test_where_not_to_save(tmp_path):
    page = explorer(recording())
    with pytest.raises(ValueError, match="is a folder"):
        page.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        page.save(tmp_path / "nowhere" / "a.html")


# --- what it takes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    model = vit.build_model((16, 24), 8, 2, 16, 2, "tiny", 32, classes=3, registers=1)
    kernel = model.get_layer("head").kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    model.run_eagerly = True
    return model


def picture(seed=0, size=(32, 48)):
    return np.random.default_rng(seed).integers(0, 255, (*size, 3), "uint8")


def test_a_model_with_a_target(model, tmp_path):
    path = tmp_path / "a cat.png"
    Image.fromarray(picture()).save(path)
    meta, blocks = parts(explorer(model, [path, picture(1, (20, 20))], target=2).html)
    assert [v["name"] for v in meta["views"]] == ["a cat", "Image 2"]
    assert meta["sources"][0]["name"] == "tiny"
    assert [m["name"] for m in meta["views"][0]["maps"]] == ["Rollout to output", "ALTI", "Relevance: class 2"]
    exact = visualize.relevance_map(visualize.record(model, [picture(), picture(1, (20, 20))], target=2))
    found = unpack(blocks["maps-1"], (3, 1, 6))[2, 0].reshape(2, 3)
    np.testing.assert_allclose(found, exact[1], atol=exact.max() / 255)


def test_without_a_target_it_is_the_predicted_class_of_a_head_that_has_learned(model):
    def views(of, **options):
        return [m["key"] for m in parts(explorer(of, picture(), **options).html)[0]["views"][0]["maps"]]

    assert views(model) == ["output", "alti", "relevance"]
    assert views(model, target=None) == ["output", "alti"]
    assert "relevance" not in views(model, head_fusion="mean")
    fresh = vit.build_model((16, 24), 8, 2, 16, 2, "fresh", 32, classes=3)
    two_outputs = keras.Model(model.input, [model.output, model.output])
    for other in (fresh, two_outputs, keras.Model(model.input, model.get_layer("Transformer_encoder_norm").output)):
        other.run_eagerly = True
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            assert views(other) == ["output", "alti"]


@pytest.mark.parametrize("norm", ["attention_norm", "post_norm"])
def test_a_model_whose_values_do_not_add_up_is_shown_without_alti(norm):
    other = vit.build_model((16, 24), 8, 2, 16, 2, "normed", 32, classes=3, **{norm: True})
    other.run_eagerly = True
    meta, _ = parts(explorer(other, picture(), target=None).html)
    assert [m["key"] for m in meta["views"][0]["maps"]] == ["output"]
    with pytest.raises(ValueError, match=r"keep=\('attention', 'tokens'\)"):
        visualize.record(other, picture())
    assert visualize.record(other, picture(), keep=("attention", "tokens")).tokens is not None


def test_options_of_the_recording(model):
    page = explorer(model, picture(), layers=[1], head_fusion="max").html
    meta, _ = parts(page)
    assert meta["sources"][0]["layers"] == [{"n": 1, "heads": 1}]
    assert meta["sources"][0]["fused"] == "max"
    exact = visualize.record(model, picture(), layers=[1]).attention[0, 0].max(0)
    np.testing.assert_allclose(stored(page)[0][0], exact, atol=exact.max() / 255)


def test_two_models_share_their_pictures(model):
    meta, _ = parts(explorer(model, [picture(), picture(1)], compare=model, target="predicted").html)
    assert [s["name"] for s in meta["sources"]] == ["tiny (first)", "tiny (second)"]
    assert [(v["source"], v["picture"]) for v in meta["views"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(meta["pictures"]) == 2


def test_recordings_side_by_side(model):
    meta, _ = parts(explorer(recording(images=2), compare=recording(grid=(2, 2))).html)
    assert [s["grid"] for s in meta["sources"]] == [[3, 5], [2, 2]]
    assert len(meta["views"]) == 3
    for one, other in ((recording(), model), (model, recording())):
        with pytest.raises(TypeError, match="Recording"):
            explorer(one, picture() if one is model else None, compare=other)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model_or_recording": "model.keras"}, TypeError, "Received: str"),
        ({"images": np.zeros((8, 8, 3))}, TypeError, "Leave out images"),
        ({"target": 1, "layers": [0]}, TypeError, "Leave out target, layers"),
        ({"model_or_recording": recording(attention=None)}, ValueError, "no attention: record with keep="),
        ({"model_or_recording": recording(attention=np.ones((3, 1, 2, 17)))}, ValueError, "query='all'"),
        ({"model_or_recording": recording(attention=np.ones((3, 1, 2, 9, 9)))}, ValueError, "17 × 17"),
    ],
)
def test_mistakes(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        explorer(**{"model_or_recording": recording(), **arguments})


def test_mistakes_with_a_model_and_with_fused_heads(model):
    with pytest.raises(TypeError, match="A model needs images"):
        explorer(model)
    fused = dataclasses.replace(recording(), head_fusion="relevance", attention=np.ones((3, 1, 17, 17), "float32"))
    with pytest.raises(ValueError, match="'relevance'.*head_fusion="):
        explorer(fused)


# --- the page in a browser ----------------------------------------------------------------------------------------


DESKTOP = {"width": 1200, "height": 900}


@pytest.fixture(scope="module")
def desktop(browser):
    """A tab that the tests take in turns: to open one takes as long as most tests."""
    with contextlib.closing(browser.new_context(offline=True, viewport=DESKTOP)) as context:
        yield context.new_page()


@pytest.fixture
def show(browser, desktop, tmp_path):
    """Open a page offline; at the end nothing may have been asked for and no error printed."""
    contexts, pages, requests, errors = [], [], [], []

    def listen(message):
        errors.extend([message.text] if message.type in ("error", "warning") else [])

    listeners = {
        "request": lambda request: requests.append(request.url),
        "console": listen,
        "pageerror": lambda error: errors.append(str(error)),
    }

    def tab_for(**options):
        if not options and desktop not in pages:
            return desktop
        contexts.append(browser.new_context(offline=True, **{"viewport": DESKTOP, **options}))
        return contexts[-1].new_page()

    def show(page, address="", *, opening=False, frame=False, allow_errors=False, **options):
        if not opening and "mode=" not in address:
            address = f"{address}&mode=attention" if address else "#mode=attention"
        tab = tab_for(**options)
        pages.append(tab)
        for event, listener in () if allow_errors else listeners.items():
            tab.on(event, listener)
        path = tmp_path / f"page{len(pages)}.html"
        if frame:
            path.write_text(f"<!doctype html><body>{page._repr_html_()}</body>", "utf-8")
        else:
            page.save(path)
        tab.goto(path.as_uri() + address)
        ready = "html[data-ready=true]"
        tab.frame_locator("iframe").locator(ready).wait_for() if frame else tab.wait_for_selector(ready)
        return tab

    yield show
    for context in contexts:
        context.close()
    if desktop in pages:
        for event, listener in listeners.items():
            with contextlib.suppress(KeyError):  # errors were allowed
                desktop.remove_listener(event, listener)
        desktop.mouse.move(0, 0)
        desktop.emulate_media(media="null")
        desktop.goto("about:blank")
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert errors == []


def settled(tab, **expected):
    """Wait until the state is so."""
    for name, value in expected.items():
        tab.wait_for_function("([name, value]) => explorer.state[name] === value", arg=[name, value])


def centre(tab, row, column, grid, panel=0):
    box = tab.locator(".picture canvas").nth(panel).bounding_box()
    return box["x"] + (column + 0.5) / grid[1] * box["width"], box["y"] + (row + 0.5) / grid[0] * box["height"]


def token(tab, number, panel=0):
    tab.wait_for_function("([n, p]) => explorer.token(p) === n", arg=[number, panel])


def shown(tab, panel=0):
    return np.array(tab.evaluate("p => explorer.shown(p)", panel))


def near(found, exact, top=None):
    """To half a step of the root, which has 255, where it is steepest: at its row's maximum."""
    np.testing.assert_allclose(found, exact, atol=np.max(exact if top is None else top) / 255)


def test_hover_click_and_unlock(show):
    rec = recording()
    tab = show(explorer(rec))
    settled(tab, layer=2, head="mean", locked=False)
    near(shown(tab), rec.attention[2, 0].mean(0)[0, 2:])  # from the class token
    tab.mouse.move(*centre(tab, 1, 3, rec.grid))
    token(tab, 2 + 8)
    near(shown(tab), rec.attention[2, 0].mean(0)[10, 2:])
    assert tab.locator(".tip").first.inner_text().startswith("1, 3: ")
    tab.mouse.click(*centre(tab, 2, 4, rec.grid))
    settled(tab, locked=True)
    token(tab, 2 + 14)
    tab.mouse.move(*centre(tab, 0, 0, rec.grid))
    tab.wait_for_function("() => document.querySelector('.tip').textContent.startsWith('0, 0: ')")
    token(tab, 2 + 14)  # it stays
    tab.keyboard.press("Escape")
    settled(tab, locked=False)
    tab.mouse.move(*centre(tab, 0, 1, rec.grid))
    token(tab, 2 + 1)
    tab.mouse.click(*centre(tab, 0, 1, rec.grid))
    settled(tab, locked=True)
    tab.mouse.click(*centre(tab, 0, 1, rec.grid))  # the same patch again
    settled(tab, locked=False)


def test_keys(show):
    rec = recording()
    tab = show(explorer(rec))
    tab.locator(".picture canvas").first.focus()
    tab.keyboard.press("ArrowDown")  # from the class token to the middle
    token(tab, 2 + 7)
    settled(tab, locked=True)
    for key, number in (("ArrowUp", 2), ("ArrowUp", 2), ("ArrowRight", 3), ("ArrowDown", 8), ("ArrowLeft", 7)):
        tab.keyboard.press(key)
        token(tab, 2 + number)
    tab.keyboard.press("[")
    settled(tab, layer=1)
    tab.keyboard.press(".")
    tab.keyboard.press(".")
    settled(tab, head=1)
    near(shown(tab), rec.attention[1, 0, 1, 9, 2:])
    tab.keyboard.press("a")
    settled(tab, by=True)
    near(shown(tab), rec.attention[1, 0, 1, 2:, 9], top=1)
    tab.keyboard.press(",")
    settled(tab, head=0)
    tab.keyboard.press("]")
    settled(tab, layer=2)
    tab.keyboard.press("c")
    token(tab, 0)
    tab.keyboard.press("c")
    token(tab, 1)
    tab.keyboard.press("m")
    settled(tab, mode="rollout")
    tab.keyboard.press("Enter")
    settled(tab, locked=True)  # the middle patch, since the token was a register
    tab.keyboard.press(" ")
    settled(tab, locked=False)


def test_rollout_and_maps(show):
    readout = np.random.default_rng(5).dirichlet(np.ones(17), 1).astype("float32")
    rec = dataclasses.replace(recording(layers=4), readout=readout, pooling_attention=readout[:, None])
    tab = show(explorer(rec))
    for i, query in ((0, "cls"), (2 + 8, (1, 3))):
        exact = visualize.attention_rollout(rec, query=query)[0].ravel()
        np.testing.assert_allclose(
            tab.evaluate("i => explorer.rollout(3, i)", i)[2:], exact, rtol=0.02
        )  # errors of the codes average out
    matrix = np.array([tab.evaluate("i => explorer.rollout(3, i)", i) for i in range(17)])
    columns = np.array([tab.evaluate("i => explorer.rollout(3, i, true)", i) for i in range(17)]).T
    np.testing.assert_allclose(matrix, columns, rtol=1e-6)  # float32 sums in another order
    tab.get_by_role("radio", name="Rollout to output").check()
    settled(tab, mode="output")
    near(shown(tab), visualize.attention_rollout(rec)[0].ravel())
    assert tab.locator(".heads").first.is_hidden()
    tab.get_by_role("button", name="Attention of the pooling head").click()
    settled(tab, mode="pooling")
    near(shown(tab), rec.readout[0, 2:])


def test_address_restores_everything(show):
    tab = show(explorer(recording(images=2)), "#view=1&token=reg0&layer=0&head=1&by=1&scale=linear&locked=1&theme=dark")
    wanted = {"view": 1, "layer": 0, "head": 1, "by": True, "scale": "linear", "locked": True, "theme": "dark"}
    settled(tab, **wanted)
    assert tab.evaluate("explorer.state.at.prefix") == "reg0"
    tab.evaluate("explorer.set({mode: 'rollout', opacity: 30, other: 0, at: {x: 0.5, y: 0.5}})")
    tab.wait_for_function("() => location.hash.includes('token=1,2') && location.hash.includes('opacity=30')")
    tab.reload()
    tab.wait_for_selector("html[data-ready=true]")
    settled(tab, **wanted, mode="rollout", opacity=30, other=0)
    token(tab, 2 + 7)


def test_two_pictures_of_different_grids(show):
    first, second = (
        recording(grid=(4, 4), prefix=()),
        recording(grid=(8, 2), layers=6, heads=3, prefix=("cls",), seed=1),
    )
    tab = show(explorer(first, compare=second), "#other=1")
    assert tab.locator(".panel:visible").count() == 2
    tab.mouse.move(*centre(tab, 3, 0, (4, 4)))
    token(tab, 12)
    token(tab, 1 + 14, 1)  # the same place: row 7 of 8, column 0 of 2
    near(shown(tab, 1), second.attention[5, 0].mean(0)[15, 1:])
    tab.mouse.move(*centre(tab, 0, 1, (8, 2), panel=1))
    token(tab, 1 + 1, 1)
    token(tab, 3)
    tab.evaluate("explorer.set({layer: 0, head: 1})")
    near(shown(tab, 1), second.attention[0, 0, 1, 2, 1:])
    tab.locator(".panel").nth(1).get_by_role("button", name="Layer 5").click()
    settled(tab, layer=2)
    tab.get_by_label("Side by side with").select_option("-1")
    tab.wait_for_function("() => document.querySelectorAll('.panel')[1].hidden")


def test_names_are_text(show):
    rec = recording(
        labels=(HOSTILE,) * 4,
        logits=np.eye(4, dtype="float32")[:1],
        target=np.array([2]),
        gradients=np.ones((3, 1, 2, 17, 17), "float32"),
    )
    tab = show(explorer(rec, title=HOSTILE))
    tab.evaluate("explorer.set({mode: 'relevance'})")
    assert tab.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert tab.locator(".where").first.inner_text().startswith("Relevance: </script><img")
    assert tab.evaluate("document.images.length") == 2  # one for each side
    assert tab.title() != "owned"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(show, scheme):
    """WCAG AA."""
    assert min(contrasts(show(explorer(recording()), color_scheme=scheme)))[0] >= 4.5


def test_narrow_and_touch(show):
    rec = recording(images=2, labels=("a very long name of a class " * 4,) * 3, logits=np.zeros((2, 3), "float32"))
    tab = show(
        explorer(rec, title="Averylongtitlewithoutanyspaces" * 3),
        "#other=1",
        viewport={"width": 360, "height": 740},
        has_touch=True,
    )
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    box = tab.locator(".picture canvas").first.bounding_box()
    assert box["width"] > 280
    tab.locator(".picture canvas").first.tap(position={"x": box["width"] * 0.9, "y": box["height"] * 0.5})
    settled(tab, locked=True)
    token(tab, 2 + 9)


def test_everything_has_a_name(show):
    """All that takes the focus says what it is, and shows that it has it."""
    tab = show(explorer(recording(images=2)))
    unnamed = tab.evaluate("""() => [...document.querySelectorAll('button, input, select, canvas[tabindex]')]
        .filter(e => e.checkVisibility())
        .filter(e => !(e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim() || e.textContent.trim()))
        .map(e => e.outerHTML)""")
    assert unnamed == []
    tab.keyboard.press("Tab")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


# --- what the page opens on, and where things are -----------------------------------------------------------------


def with_values(**options):
    """A recording that ALTI can be made of."""
    random = np.random.default_rng(3)
    fields = {
        "values": random.normal(size=(3, 1, 2, 17, 4)),
        "projections": np.ones((3, 2, 4, 8)),
        "tokens": random.normal(size=(4, 1, 17, 8)),
    }
    return recording(**{**fields, **options})


def test_opens_on_a_map_of_the_output(show):
    settled(show(explorer(with_values()), opening=True), mode="alti")
    tab = show(explorer(recording()), opening=True)
    settled(tab, mode="output")
    names = tab.locator("#from-token span, #from-output span").all_inner_texts()
    assert len(set(names)) == len(names) and "Rollout" not in names
    assert "Click on a patch" in tab.locator(".readout").first.inner_text()
    tab.mouse.click(*centre(tab, 1, 3, (3, 5)))
    settled(tab, mode="attention", locked=True)
    token(tab, 2 + 8)


def test_a_comparison_opens_with_both(show):
    first, second = recording(images=2), recording(images=2, seed=1)
    tab = show(explorer(first, compare=second), opening=True)
    settled(tab, other=2)
    assert tab.locator(".panel:visible").count() == 2
    near(shown(tab, 1), visualize.attention_rollout(second)[0].ravel())
    highest = tab.locator(".scale:visible .high").all_inner_texts()
    assert len(highest) == 2 and highest[0] != highest[1]  # a scale for each
    tab.get_by_label("Image", exact=True).first.select_option("1")  # the other side follows
    settled(tab, view=1, other=3)


@pytest.mark.parametrize("smooth", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_view_is_saved(show, smooth):
    tab = show(explorer(recording(), compare=recording(seed=1), title=HOSTILE), f"#mode=output&smooth={smooth}")
    saved = {}
    for kind in ("svg", "png"):
        with tab.expect_download() as download:
            tab.get_by_role("button", name=kind.upper()).click()
        assert download.value.suggested_filename.endswith(f"-output.{kind}")
        saved[kind] = Path(download.value.path()).read_bytes()
    root = ElementTree.fromstring(saved["svg"])
    assert root.tag.endswith("}svg") and len(root.findall("{*}image")) == 2 + 2 * smooth
    width, height = int(root.get("width")), int(root.get("height"))
    png = Image.open(io.BytesIO(saved["png"])).convert("RGB")
    assert png.size == (2 * width, 2 * height)
    picture = np.asarray(png)[2 * 120 : 2 * 300, 2 * 40 : 2 * 500]
    assert picture.std() > 15  # not blank
