"""Settings of the whole suite, and fixtures that several folders use."""

import collections
import functools
import gc
import itertools
import os
import shutil
from pathlib import Path

import make_google_npz
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# On a GPU, the libraries would round the inputs of float32 products to 10 bits.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")

# As many processes as there are cores: where each also has as many threads, they wait for one another (PyTorch: six
# times as long).
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

# What JAX compiles is kept: the same tiny models come again in other tests, in the other process, and in the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import budget
from support import SHARED

# About files, messages, pictures and pages: what they say of one backend holds for all, but for those that are `core`.
ANY_BACKEND = (
    *("checkpoints", "hostile", "serve", "cli/test_cli.py", "cli/test_start.py", "training/test_report.py"),
    *("docs/test_benchmarks.py", "docs/test_docs.py", "docs/test_packaging.py"),
    "docs/test_versions.py",
    *("export/test_web.py", "export/onnx/test_int8.py", "export/onnx/test_narrow.py"),
    *("test_bounds.py", "test_faults.py", "test_image_bounds.py", "test_images.py", "test_labels.py"),
    "test_openvino.py",
    *("test_layout.py", "test_validate.py"),
    *("text/test_reading.py", "text/test_tokenizer.py"),
    *("visualize/test_explorer.py", "visualize/test_figures.py", "visualize/test_overlays.py"),
)


# They run the command line, which prints warnings to the user: an error would keep it from that.
COMMAND_LINE = ("cli", "docs", "serve", "export/test_formats.py", "test_cost.py", "text/test_matching.py")


def pytest_addoption(parser):
    """Add `--budget`, which `make test` passes."""
    budget.add_option(parser)


def pytest_configure(config):
    """Measure the processor time of each test where the table is asked for."""
    if config.getoption("budget"):
        config.pluginmanager.register(budget.Budget(), "budget")


def pytest_ignore_collect(collection_path, config):
    """Leave out files without a test for `-m first_case`: reading all takes longer than those tests."""
    expression = config.option.markexpr
    if not expression.startswith("first_case") or collection_path.suffix != ".py":
        return None
    marks = ["mark.core", *(["only_on("] if "only_on" in expression else [])]
    return None if any(mark in collection_path.read_text("utf-8") for mark in marks) else True


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items):
    """Mark what runs on which backend, and what is slow: by its number of cases, and where a backend compiles long."""
    import keras

    backend = keras.backend.backend()
    here, elsewhere, seen, cases = [], [], set(), collections.Counter()
    for item in items:
        marks = {mark.name: mark for mark in reversed([*item.iter_markers()])}  # the closest of each name
        if "only_on" in marks and backend not in marks["only_on"].args:
            elsewhere.append(item)
            continue
        here.append(item)
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        slow = "slow" in marks
        late = "few_cases" in marks and cases[test] > marks["few_cases"].args[0]
        if late or (backend != "torch" and "compiles_long" in marks):
            item.add_marker("slow")
            slow = True
        core = marks.get("core")
        if not core and _lies_in(item.path, ANY_BACKEND):
            item.add_marker("any_backend")
        chosen = core and item.originalname in core.kwargs.get("first", [item.originalname])
        first = chosen and not slow and test not in seen
        if first:
            item.add_marker("first_case")
            seen.add(test)
        # The nightly tests run for hours, on all versions and backends: a warning is shown there, and the results are.
        in_make_test = not slow and (backend == "torch" or first or "only_on" in marks)
        if not in_make_test:
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)  # before those of the test
        elif _lies_in(item.path, COMMAND_LINE):
            item.add_marker(pytest.mark.filterwarnings("default::UserWarning"), append=False)
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = here


@functools.cache  # there are eight thousand tests in some hundred files
def _lies_in(path, places):
    """Whether a file of tests is one of these, or in one of these folders."""
    path = path.relative_to(Path(__file__).parent)
    return any(path.is_relative_to(place) for place in places)


@pytest.fixture(scope="module", autouse=True)
def little_garbage():
    """What is there before a module stays, and is not searched for garbage again: that takes half a second each time.

    Keras has all garbage collected for each attribute that it deletes, as when a layer is quantized.
    """
    gc.set_threshold(50_000, 20, 100)  # the usual ones look for garbage a tenth of the time
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """Paths of folders that do not exist yet, another one each time."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_home(homes, monkeypatch):
    """No test sees the user's cache or settings, or leaves anything in them; none reaches the network."""
    monkeypatch.setenv("VIT_KERAS_HOME", str(next(homes)))
    monkeypatch.setenv("KERAS_HOME", str(next(homes)))
    monkeypatch.setenv("HF_HOME", str(next(homes)))
    monkeypatch.setenv("TORCH_HOME", str(next(homes)))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("VIT_KERAS_WEIGHTS", raising=False)
    monkeypatch.delenv("VIT_KERAS_OFFLINE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # which would wrap what the command line prints


@pytest.fixture(scope="session")
def shared():
    """Folder of the large golden data, the real weights and pictures; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with real weights and pictures is not there")
    return SHARED


@pytest.fixture(scope="session")
def real_weights(shared):
    """Google's AugReg ViT-Ti/16, fine-tuned on ImageNet-1k at 224 pixels."""
    return next((shared / "weights").glob("Ti_16-*.npz"))


@pytest.fixture
def google_npz(tmp_path):
    """Write a checkpoint in Google's format: `google_npz("ViT-mu_16", image_size=64, classes=10)`."""

    def write(variant="ViT-mu_16", **options):
        options = {"image_size": 64, "classes": 10, **options}
        path = tmp_path / f"{variant}-{len(list(tmp_path.iterdir()))}.npz"
        make_google_npz.save(path, make_google_npz.make(variant, **options))
        return path

    return write


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; tests that need it skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
