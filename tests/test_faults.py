"""Kills, Ctrl-C and full disks: no file is half, no finished work is lost, nothing is left over."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import ROOT

from vit_keras import vit
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


def tiny():
    return vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)


# --- kills and Ctrl-C ---------------------------------------------------------------------------------------------


def check(operations, kills, *only):
    command = [sys.executable, "-m", "benchmarks.lab.faults", "--kills", str(kills), "--only", ",".join(only)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    rows = re.findall(rf"^\| .* \| {kills} \| \d+ \| \d+ \| 0 \| 0 \| 0 \| 0 \| \d+ \|.*$", result.stdout, re.MULTILINE)
    assert result.returncode == 0 and len(rows) == operations, result.stdout + result.stderr


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


def test_a_folder_that_was_taken_for_a_dead_ones_is_made_again(tmp_path, monkeypatch):
    """Another process deletes it between its making and its locking."""
    made, make = [], atomic.tempfile.mkdtemp

    def make_and_lose(**options):
        made.append(make(**options))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr(atomic.tempfile, "mkdtemp", make_and_lose)
    with atomic.complete(tmp_path / "a") as part:
        part.write_text("whole")
    assert len(made) == 2 and [path.name for path in tmp_path.iterdir()] == ["a"]


def test_files_are_written_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "fcntl", None)
    (tmp_path / ".vit_keras-unknown").mkdir()
    with atomic.complete(tmp_path / "a") as part:
        part.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".vit_keras-unknown", "a"]


def test_the_state_of_a_finished_run_disappears_at_once(tmp_path, monkeypatch):
    run = running.RunState(tmp_path / ".state", {}, False)
    run.begin(1)

    def killed(folder, **options):
        for path in folder.rglob("state.json"):
            path.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        run.remove()
    assert not (tmp_path / ".state").exists()


# --- full disks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "folder"])
def test_weights_on_a_full_disk(name, tmp_path, full_disk):
    model = tiny()
    with pytest.raises(OSError, match=f"{name}.*: File too large.* space"), full_disk():
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
    with pytest.raises(OSError, match=r"epoch-0002\.npz: File too large"), full_disk():
        run.record({"loss": 0.9, "val_accuracy": 0.6, "val_loss": 0.9}, model)
    again = running.RunState(tmp_path / ".state", {}, False)
    assert again.done == 1 and sorted(path.name for path in again.folder.iterdir()) == ["epoch-0001.npz", "state.json"]
    again.restore(model)


def test_decoded_pictures_on_a_full_disk(tmp_path, full_disk):
    for n in range(4):
        (tmp_path / "pictures" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "pictures" / "ab"[n % 2] / f"{n}.png")
    for cache, named in (("auto", "the decoded images to"), (tmp_path / "cache", r"cache.*\.pixels")):
        with pytest.raises(OSError, match=f"{named}.*: File too large"), full_disk():
            image_folder(tmp_path / "pictures", 32, cache=cache, progress=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_error_that_is_not_the_disks_stays_as_it_is(tmp_path):
    errors = [
        FileNotFoundError(2, "No such file", "cat.jpg"),
        ConnectionResetError(104, "reset"),
        OSError("camera off"),
    ]
    for error in errors:
        with pytest.raises(type(error)) as caught, atomic.complete(tmp_path / "a"):
            raise error
        assert caught.value is error
    assert list(tmp_path.iterdir()) == []


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


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch):
    """A file is the same if its time is the same, not if it is older; and a ZIP cannot hold times before 1980."""
    path = tmp_path / "pictures" / "a" / "0.png"
    for name in "ab":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (9, 9, 9)).save(tmp_path / "pictures" / name / "0.png")
    os.utime(path, (4e9, 4e9))

    def seen():
        return image_folder(tmp_path / "pictures", 32, cache=tmp_path / "cache", shuffle=False, progress=False)

    first = seen().arrays()[0][seen().paths.index(path)]
    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 1
    Image.new("RGB", (32, 32), (99, 9, 9)).save(path)
    os.utime(path, (1, 1))
    assert (seen().arrays()[0][seen().paths.index(path)] != first).any()
    monkeypatch.setattr("time.time", lambda: 0.0)
    embed(tiny(), [path], output=tmp_path / "a.npz", progress=False)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
