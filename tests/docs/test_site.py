"""The site: every public name is on a page with an example, its pages run, and a browser finds nothing wrong in it."""

import inspect
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from readable import contrasts
from support import ROOT, script

import vit_keras

DOCS = ROOT / "docs"
public = script(DOCS / "_ext" / "public.py")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


# --- the reference ------------------------------------------------------------------------------------------------


def names():
    """Every public name: the module that documents it, the name, the value."""
    for module, found in public.public().items():
        yield from ((module, name, value) for name, (value, home) in found.items() if home == f"{module}.{name}")


def test_every_public_module_has_a_page():
    shown = {*vit_keras._SUBMODULES} - {"opening"}  # whose names `vit_keras` has
    expected = {"vit_keras", *(f"vit_keras.{name}" for name in shown)}
    assert expected <= set(public.modules())
    assert len(public.modules()) == len(set(public.modules()))


@pytest.mark.parametrize("module", public.modules())
def test_every_public_name_has_an_example_that_runs(module):
    # tests/docs/test_docs.py runs them. A constant has a sentence instead.
    for home, name, value in names():
        if home == module and public.is_code(value):
            text = inspect.getdoc(value)
            assert "Example" in text and ">>> " in text, f"{module}.{name}"
        elif home == module:
            text = public.constants(public.constant_home(module, name, value))[name]
            assert text, f"{module}.{name}"


def parameters(value):
    """The names of a function's arguments, without those that are passed on."""
    found = inspect.signature(value).parameters.values()
    return [each.name for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def test_every_argument_of_a_public_function_is_documented():
    """One or two arguments may be in the summary."""
    missing = {}
    for module, name, value in names():
        if inspect.isroutine(value) and len(parameters(value)) > 2:
            text = inspect.getdoc(value)
            missing[f"{module}.{name}"] = [each for each in parameters(value) if f"\n    {each}: " not in text]
    assert len(missing) > 50 and not {name: each for name, each in missing.items() if each}


# What a command says of itself, what the guides on extending name, and what public functions return.
LONG = {"Command", "describe", "Family", "Method", "Op", "Plan", "Rule", "write_saved_model"}
LONG |= {"GridPointing", "MapEvaluation", "RandomizationCheck", "Recording"}


# --- messages that lead to pages -------------------------------------------------------------------------------------


def symptoms():
    """`{anchor: text}` of the sections of the page of symptoms."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    parts = re.split(r"^\(([\w-]+)\)=\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


@pytest.mark.any_backend
def test_messages_lead_to_sections_that_there_are():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "vit_keras").rglob("*.py"))
    named = {name for text in sources for name in re.findall(r"""\bsee\(['"]([\w-]+)['"]\)""", text)}
    assert len(named) >= 5 and named <= set(symptoms())


# --- the site itself ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site: that of `VIT_KERAS_SITE`, or one that is built here, strictly, as `make docs` builds it."""
    if "VIT_KERAS_SITE" in os.environ:
        return Path(os.environ["VIT_KERAS_SITE"]).resolve()
    for name in (
        "sphinx",
        "myst_parser",
        "pydata_sphinx_theme",
        "sphinx_design",
        "sphinx_gallery",
        "sphinx_copybutton",
    ):
        pytest.importorskip(name, reason='the site needs pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q"]
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend(), "VIT_KERAS_HOME": str(folder / "home")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "-d", folder / "doctrees", DOCS, folder / "html"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return folder / "html"


@pytest.mark.slow
@pytest.mark.any_backend
def test_the_site_shows_every_public_name(site):
    for module, name, _ in names():
        page = (site / "reference" / f"{module}.html").read_text(encoding="utf-8")
        assert f'id="{module}.{name}"' in page, f"{module}.{name}"


@pytest.mark.slow
@pytest.mark.any_backend
def test_broken_links_are_found(tmp_path):
    links = script(DOCS / "_ext" / "internal_links.py")
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#not"></a><img src="c.png">')
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><a href="https://example.org/x"></a>')
    wrong, outside = links.broken(tmp_path)
    assert sorted(wrong) == ["a.html: there is no c.png", "a.html: there is no place b.html#not"]
    assert outside == ["https://example.org/x"]


CHECK = """() => ({
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  empty: [...document.images].filter((i) => i.complete && !i.naturalWidth && i.src).map((i) => i.src),
  cut: [...document.querySelectorAll("article table, article img, article pre")].filter((node) => {
    for (let box = node; box && box.tagName !== "ARTICLE"; box = box.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return false;
    return node.getBoundingClientRect().right > innerWidth + 1;
  }).map((node) => node.outerHTML.slice(0, 80)),
})"""


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize(("size", "scheme"), [*itertools.product(("phone", "desktop"), ("light", "dark"))])
def test_a_browser_clicks_through_the_site(site, browser, size, scheme):
    context = browser.new_context(viewport=PHONE if size == "phone" else DESKTOP, color_scheme=scheme)
    tab, errors, seen = context.new_page(), [], []
    tab.on("pageerror", lambda error: errors.append(f"{tab.url}: {error}"))
    tab.on("console", lambda m: errors.append(f"{tab.url}: {m.text}") if m.type in ("error", "warning") else None)
    tab.on("requestfailed", lambda request: errors.append(f"{tab.url}: {request.url} failed"))
    tab.goto((site / "index.html").as_uri())
    while True:
        found = tab.evaluate(CHECK)
        seen.append(tab.url)
        assert found["wide"] <= 0 and not found["empty"] and not found["cut"], (tab.url, found)
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        texts = contrasts(tab)
        assert len(texts) > 10 and min(texts)[0] >= 4.5, (tab.url, min(texts))  # WCAG 2.1, level AA
        onward = tab.locator("a.right-next")
        if not onward.count():
            break
        with tab.expect_navigation():
            onward.click()
    assert not errors
    assert len(seen) == len(set(seen)) > 50  # every page of the navigation, each once
    context.close()


@pytest.mark.slow
@pytest.mark.any_backend
def test_tables_are_filtered_and_sorted(site, browser):
    tab = browser.new_page(viewport=DESKTOP)
    tab.goto((site / "tables" / "published.html").as_uri())
    shown = tab.locator(".filterable tbody tr:visible")
    scores = [float(text) for text in shown.locator("td:nth-child(2)").all_inner_texts() if text]
    assert len(scores) > 150 and scores == sorted(scores, reverse=True)  # the best first
    tab.get_by_role("searchbox", name="Filter the checkpoints").fill("dinov2 518")
    expected = vit_keras.checkpoints.available(name="*dinov2*", image_size=518)
    assert shown.count() == len(expected) > 0
    tab.locator(".filterable th", has_text="MB").click()
    sizes = [float(text.strip("~")) for text in shown.locator("td:nth-child(3)").all_inner_texts()]
    assert sizes == sorted(sizes)
    tab.close()
