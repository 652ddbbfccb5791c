"""The report: its numbers, and the page itself in a real browser without a network."""

import contextlib

import numpy as np
import pytest
from readable import contrasts

from vit_keras.training.evaluation import Evaluation
from vit_keras.training.evaluation.report import report

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> &amp; {{main}} \u2028 'cat'"


def evaluation(classes=3, count=60, seed=0, names=None):
    random = np.random.default_rng(seed)
    labels = np.r_[np.arange(classes), random.integers(0, classes, count - classes)]
    logits = random.normal(0, 1, (count, classes))
    logits[np.arange(count), labels] += 1.5
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    names = names or tuple(f"class {k}" for k in range(classes))
    return Evaluation(names, tuple(f"{names[k]}/{n}.jpg" for n, k in enumerate(labels)), labels, shares)


def whole(seen=None, **options):
    """A page with everything in it."""
    seen = seen or evaluation()
    random = np.random.default_rng(1)
    pictures = {int(n): (random.integers(0, 255, (40, 60, 3), "uint8"),) * 2 for n in seen.mistakes()[:4]}
    history = {
        "accuracy": [0.4, 0.7, 0.8],
        "loss": [1.2, 0.7, 0.5],
        "val_accuracy": [0.5, 0.75, 0.7],
        "val_loss": [1, 0.6, 0.7],
    }
    given = {"history": history, "notes": ["Mind the gap."], "images": pictures}
    given |= {"command": "vit-keras finetune 'my photos'", "recipe": {"ema": None, "augmentation": {"flip": True}}}
    return report(seen, **{"title": "Fine-tuning", "subtitle": "of a ViT", **given, "facts": {"seed": 0}, **options})


# --- the numbers ------------------------------------------------------------------------------------------------


def test_measures_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    seen = evaluation(classes=4, count=90)
    precision, recall, f1, pictures = metrics.precision_recall_fscore_support(seen.labels, seen.predictions)
    for k, scores in enumerate(seen.per_class):
        assert scores["images"] == pictures[k]
        found = [scores[name] for name in ("precision", "recall", "f1")]
        np.testing.assert_allclose(found, [precision[k], recall[k], f1[k]], rtol=1e-12)
    np.testing.assert_array_equal(seen.confusion, metrics.confusion_matrix(seen.labels, seen.predictions))
    assert seen.accuracy == metrics.accuracy_score(seen.labels, seen.predictions)
    assert seen.measures["macro_f1"] == pytest.approx(f1.mean(), rel=1e-12)
    assert seen.measures["loss"] == pytest.approx(metrics.log_loss(seen.labels, seen.probabilities), rel=1e-9)


def test_mistakes_come_worst_first():
    seen = evaluation()
    mistakes = seen.mistakes()
    assert set(mistakes) == set(np.flatnonzero(seen.predictions != seen.labels))
    assert (np.diff(seen.probabilities[mistakes, seen.labels[mistakes]]) >= 0).all()


@pytest.mark.parametrize(
    ("right", "count", "low", "high"), [(90, 100, 0.8256, 0.9448), (10, 10, 0.7225, 1.0), (0, 5, 0, 0.4345)]
)
def test_interval(right, count, low, high):
    """Values of Wilson's interval from the textbook's formula, to four digits."""
    labels = np.zeros(count, int)
    shares = np.where(np.arange(count)[:, None] < right, [[1.0, 0.0]], [[0.0, 1.0]])
    assert Evaluation(("a", "b"), ("p",) * count, labels, shares).interval == pytest.approx((low, high), abs=1e-4)


# --- the page -----------------------------------------------------------------------------------------------------


def test_page_says_it_all():
    seen = evaluation()
    page = whole(seen)
    assert f"{100 * seen.accuracy:.1f}\N{NO-BREAK SPACE}%" in page and "Mind the gap." in page
    assert "vit-keras finetune &#x27;my photos&#x27;" in page and "&quot;flip&quot;: true" in page
    assert page.count("<img ") == 8 and page.count("data:image/jpeg;base64,") == 8
    for number in seen.mistakes()[:4]:
        assert seen.paths[number] in page
    for count in seen.confusion.ravel():
        assert f">{count}</td>" in page


def test_page_shows_a_curve_of_each_metric_and_the_calibration():
    rates = {"learning_rate": [3e-4, 2e-4]}
    for history, count in (({"loss": [1.2, 0.7], "val_loss": [1, 0.6]}, 1), ({"val_top_5": [0.7, 0.8], **rates}, 2)):
        page = whole(evaluation(classes=4, count=90), history=history)
        training = page[page.index("<h2>Training</h2>") : page.index("</section>", page.index("<h2>Training</h2>"))]
        assert training.count("<svg") == count
        assert all(title in training for title in (("Loss",) if count == 1 else ("Top 5", "Learning rate")))
        assert "<h2>Calibration</h2>" in page and "expected calibration error" in page


def test_page_asks_for_nothing_and_runs_nothing():
    page = whole(title=HOSTILE)
    assert "default-src 'none'" in page and "http://" not in page and "https://" not in page
    assert "<img src=x" not in page
    assert "<script" not in page and "script-src 'none'" in page


# --- in a browser -------------------------------------------------------------------------------------------------


@pytest.fixture
def show(browser, tmp_path):
    """Open a page offline; at the end nothing may have been asked for and no error printed."""
    requests, errors = [], []
    with contextlib.ExitStack() as stack:

        def show(page, **options):
            context = browser.new_context(offline=True, **{"viewport": {"width": 1200, "height": 900}, **options})
            stack.callback(context.close)
            tab = context.new_page()
            tab.on("request", lambda request: requests.append(request.url))
            tab.on(
                "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
            )
            tab.on("pageerror", lambda error: errors.append(str(error)))
            path = tmp_path / "page.html"
            path.write_text(page, "utf-8")
            tab.goto(path.as_uri())
            return tab

        yield show
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert errors == []


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_everything_can_be_read(show, scheme):
    """WCAG 2.1, level AA: a contrast of 4.5, also of the darkest cells of the matrix."""
    labels = np.arange(60) % 3
    right = Evaluation(("a", "b", "c"), ("p",) * 60, labels, np.eye(3)[labels])
    wrong = Evaluation(("a", "b", "c"), ("p",) * 60, labels, np.eye(3)[(labels + 1) % 3])
    for seen in (right, wrong):
        found = contrasts(show(whole(seen), color_scheme=scheme))
        assert len(found) > 30 and min(found)[0] >= 4.5, min(found)


@pytest.mark.parametrize("width", [320, pytest.param(768, marks=pytest.mark.slow)])
def test_narrow_screens(show, width):
    names = ("a", "Bos_primigenius_taurus_Lakenvelder" * 3, "b c d")
    tab = show(whole(evaluation(names=names), facts={"folder": "/x" * 90}), viewport={"width": width, "height": 700})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_names_are_texts(show):
    names = (HOSTILE, "b", "<b>c</b>")
    tab = show(
        whole(evaluation(names=names), title=HOSTILE, notes=[HOSTILE], command=HOSTILE, recipe={HOSTILE: HOSTILE})
    )
    assert tab.title() == HOSTILE
    assert tab.locator("h1").inner_text().startswith("</script><img src=x")
    assert tab.locator("h2:text-is('Classes') ~ div tbody th").first.inner_text() == HOSTILE
