"""Kills, Ctrl-C and full disks: no file is half, no finished work is lost, nothing is left over."""

import contextlib
import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import ROOT, tiny_model

from vit_keras._internal import atomic
from vit_keras.checkpoints import save_weights
from vit_keras.training import embed, features, image_folder
from vit_keras.training.finetuning import run as running

resource = pytest.importorskip("resource", reason="limits on the size of files are for Linux and macOS")


@pytest.mark.parametrize("stopped", [0, 1, 2, None])
@pytest.mark.parametrize("new", ["abc", "bc"])
@pytest.mark.parametrize("old", ["abc", "bc", "c", "ab", ""])
def test_old_files_and_new_ones_are_never_together(old, new, stopped, tmp_path, monkeypatch):
    moves, replace = itertools.count(), os.replace

    def stop(*paths):
        if next(moves) == stopped:
            raise OSError("stopped here")
        replace(*paths)

    source = tmp_path / "away"
    source.mkdir()
    for names, folder in ((old, tmp_path), (new, source)):
        for name in names:
            (folder / name).write_text(folder.name)
    monkeypatch.setattr(os, "replace", stop)
    with contextlib.suppress(OSError):
        atomic.put_together(source, tmp_path, "abc")
    left = {path.name: path.read_text() for path in tmp_path.iterdir() if path != source}
    assert len(set(left.values())) <= 1
    if stopped is None:
        assert left == dict.fromkeys(new, "away")
    elif tmp_path.name in left.values():
        assert left.keys() == {new[0]}  # the first alone is whole


@pytest.mark.parametrize("at_once", [True, False])
def test_a_folder_takes_the_place_of_another(at_once, tmp_path, monkeypatch):
    if not at_once:
        monkeypatch.setattr(atomic.sys, "platform", "another")
    for folder in (tmp_path, tmp_path / "away"):
        (folder / "model" / folder.name).mkdir(parents=True)
    atomic.put_together(tmp_path / "away", tmp_path, ["model", "report"])
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["away"]
    assert [path.name for path in (tmp_path / "away" / "model").iterdir()] == [tmp_path.name]


@pytest.fixture
def full_disk():
    """A disk that has room for files of 1,000 bytes: `with full_disk():`."""

    class Limit:
        def __enter__(self):
            self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, self.before[1]))

        def __exit__(self, *error):
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)

    return Limit


tiny = functools.partial(tiny_model, patch_size=16, classes=2)


# --- kills and Ctrl-C ---------------------------------------------------------------------------------------------


def check(operations, kills, *only):
    command = [sys.executable, "-m", "benchmarks.lab.faults", "--kills", str(kills), "--only", ",".join(only)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    rows = re.findall(rf"^\| .* \| {kills} \| \d+ \| \d+ \| 0 \| 0 \| 0 \| 0 \| \d+ \|.*$", result.stdout, re.MULTILINE)
    assert result.returncode == 0 and len(rows) == operations, result.stdout + result.stderr


@pytest.mark.smoke
@pytest.mark.slow
def test_a_call_that_was_killed_or_interrupted_leaves_no_half_file_and_goes_on():
    check(1, 3, "save_weights")


@pytest.mark.slow
def test_every_call_that_was_killed_or_interrupted_leaves_no_half_file_and_goes_on():
    check(16, 6, "")


def test_what_a_killed_process_left_is_deleted_and_what_a_living_one_writes_is_not(tmp_path):
    left = tmp_path / ".vit_keras-killed"
    left.mkdir()
    (left / "a.npz").write_text("half")
    with atomic.complete(tmp_path / "a.npz") as first:
        first.write_text("first")
        with atomic.complete(tmp_path / "b.npz") as second:
            second.write_text("second")
        assert sorted(path.name for path in tmp_path.iterdir()) == [first.parent.name, "b.npz"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.npz": "first", "b.npz": "second"}


# --- full disks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "folder"])
def test_weights_on_a_full_disk(name, tmp_path, full_disk):
    model = tiny()
    with pytest.raises(OSError, match=name), full_disk():
        save_weights(model, tmp_path / name, "huggingface" if name == "folder" else None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet"])
def test_features_on_a_full_disk(name, tmp_path, full_disk):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    model, pictures = tiny(), np.random.default_rng(0).integers(0, 256, (70, 32, 32, 3), "uint8")
    (tmp_path / name).write_text("old")
    with pytest.raises(OSError, match=f"{name}: File too large"), full_disk():
        embed(model, pictures, output=tmp_path / name, progress=False)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_training_on_a_full_disk_keeps_the_epoch_before(tmp_path, full_disk):
    model = tiny()
    model.compile("adam", "mse")
    run = running.RunState(tmp_path / ".state", {}, False)
    run.begin(2)
    run.record({"loss": 1.0, "val_accuracy": 0.5, "val_loss": 1.0}, model)
    with pytest.raises(OSError, match=r"0002\.npz"), full_disk():
        run.record({"loss": 0.9, "val_accuracy": 0.6, "val_loss": 0.9}, model)
    again = running.RunState(tmp_path / ".state", {}, False)
    assert again.done == 1 and sorted(path.name for path in again.folder.iterdir()) == ["epoch-0001.npz", "state.json"]
    again.restore(model)


# --- read-only folders --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def read_only(folder):
    """Take the right to write from everybody; root, who keeps it, becomes somebody else."""
    for each in (folder, *folder.rglob("*")):
        os.chmod(each, 0o555 if each.is_dir() else 0o444)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(me)
        for each in (folder, *folder.rglob("*")):
            os.chmod(each, 0o755)


def test_what_a_read_only_cache_holds_is_used_and_more_is_refused():
    model = tiny()
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders cannot be entered by others
        place = Path(place)
        for name in "ab":
            (place / "pictures" / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (9, 9, 9)).save(place / "pictures" / name / "0.png")

        def decoded(size):
            options = {"cache": place / "cache", "shuffle": False, "progress": False}
            return image_folder(place / "pictures", size, **options).arrays()[0]

        def seen(data):
            return features(model, data, cache=place / "cache", progress=False)

        before = decoded(32), seen(place / "pictures")
        with read_only(place):
            for one, other in zip(before, (decoded(32), seen(place / "pictures"))):
                np.testing.assert_array_equal(one, other)
            for call, new in ((decoded, 16), (seen, np.zeros((1, 32, 32, 3), "uint8"))):
                with pytest.raises(PermissionError, match=f"{place / 'cache'}: Permission denied"):
                    call(new)


# --- clocks -------------------------------------------------------------------------------------------------------
