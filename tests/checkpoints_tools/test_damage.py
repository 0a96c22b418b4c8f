"""A damaged source is refused by name, a failed or killed conversion leaves nothing under the target's name."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from checkpoints_tools import staging
from megatron_ext.config.schema import Model
from tests.checkpoints_tools.samples import ROOT, checkpoint, command, convert, files, weights, with_optimizer

TINY = Model(num_layers=2, hidden_size=16, ffn_size=24, num_heads=4, vocab_size=100)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Three ranks' files."""
    folder = tmp_path_factory.mktemp("whole")
    checkpoint(folder / "one", with_optimizer(weights(TINY, torch.bfloat16)), TINY)
    assert convert(folder / "one", folder / "three", "--data", 3) == 0
    return folder / "three"


def _index(folder, change):
    path = folder / ".metadata"
    found = pickle.loads(path.read_bytes())
    change(found)
    path.write_bytes(pickle.dumps(found))


def _drop_chunks(found):
    """Half the boxes of a tensor, as a save with wrong replica numbers leaves it."""
    name = "decoder.layers.mlp.linear_fc1.weight"
    entry = found.state_dict_metadata[name]
    assert isinstance(entry, TensorStorageMetadata)
    gone = {tuple(chunk.offsets) for chunk in entry.chunks[1::2]}
    entry.chunks = entry.chunks[::2]
    for index in [i for i in found.storage_data if i.fqn == name and tuple(i.offset) in gone]:
        del found.storage_data[index]


class _Evil:
    def __reduce__(self):
        return (open, ("/tmp/evil-was-here", "w"))


def _truncate(path, count=100):
    path.write_bytes(path.read_bytes()[:-count])


def _compressed(found):
    next(iter(found.storage_data.values())).transform_descriptors = ["stream.zstd"]


DAMAGES = {
    "no metadata.json": (
        lambda f: (f / "metadata.json").unlink(),
        "metadata.json is missing: this",
    ),
    "bad metadata.json": (lambda f: (f / "metadata.json").write_text("{"), "metadata.json is not readable as JSON"),
    "other format": (lambda f: (f / "metadata.json").write_text('{"sharded_backend": "zarr"}'), "is in format 'zarr'"),
    "no common.pt": (lambda f: (f / "common.pt").unlink(), "common.pt is missing"),
    "cut common.pt": (lambda f: _truncate(f / "common.pt"), "common.pt is damaged"),
    "objects in common.pt": (
        lambda f: torch.save({"args": Model()}, f / "common.pt"),
        "holds Python objects",
    ),
    "no index": (lambda f: (f / ".metadata").unlink(), ".metadata is missing"),
    "cut index": (lambda f: _truncate(f / ".metadata"), ".metadata is damaged"),
    "index that runs code": (lambda f: (f / ".metadata").write_bytes(pickle.dumps(_Evil())), "it wants to call"),
    "no run.yaml": (lambda f: (f / "run.yaml").unlink(), "no frozen configuration at"),
    "no rank file": (lambda f: (f / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
    "cut rank file": (lambda f: _truncate(f / "__2_0.distcp"), "__2_0.distcp is truncated"),
    "boxes missing": (
        lambda f: _index(f, _drop_chunks),
        "fc1.weight [2, 48, 16] is not whole: [0:1], nothing at",
    ),
    "compressed": (lambda f: _index(f, _compressed), "is compressed or encrypted"),
    "object without place": (
        lambda f: _index(f, lambda found: found.state_dict_metadata.update(x=_bytes_entry())),
        "the index lists x, but not where it lies",
    ),
}


def _bytes_entry():
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    return BytesStorageMetadata()


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_nothing_is_written(tmp_path, capsys, whole, name):
    damage, message = DAMAGES[name]
    shutil.copytree(whole, tmp_path / "source")
    damage(tmp_path / "source")
    for arguments in ([tmp_path / "source", tmp_path / "target"], ["verify", tmp_path / "source"]):
        assert convert(*arguments) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_content_that_is_no_tensor_is_found_when_it_is_read(tmp_path, capsys, whole):
    """The sizes are right, the bytes are not: the conversion fails midway and cleans up."""
    shutil.copytree(whole, tmp_path / "source")
    path = tmp_path / "source" / "__0_0.distcp"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - 2000] + b"\0" * 2000)
    assert convert(tmp_path / "source", tmp_path / "target") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_newest_whole_checkpoint_of_a_run_is_taken(tmp_path, capsys, whole, caplog):
    run = tmp_path / "run"
    for step in (1, 2, 3):
        shutil.copytree(whole, run / "checkpoints" / f"iter_{step:07d}")
    (run / "checkpoints" / "iter_0000003" / "metadata.json").unlink()
    for number, source in enumerate((run, run / "checkpoints")):
        assert convert(source, tmp_path / f"out{number}") == 0
        facts = json.loads((tmp_path / f"out{number}" / "conversion.json").read_text())
        assert facts["source"].endswith("iter_0000002")
    assert "passed over" in caplog.text and "iter_0000003" in caplog.text
    for step in (1, 2):
        (run / "checkpoints" / f"iter_{step:07d}" / "common.pt").unlink()
    assert convert(run, tmp_path / "none") == 2
    assert "none of its checkpoints is whole" in capsys.readouterr().err
    assert convert(tmp_path / "out0" / "..", tmp_path / "none") == 2
    assert "it holds no checkpoint" in capsys.readouterr().err
    assert convert(tmp_path / "nowhere", tmp_path / "none") == 2
    assert "does not exist" in capsys.readouterr().err


def test_an_existing_target_is_refused_unless_empty(tmp_path, capsys, whole):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        assert convert(whole, tmp_path / name) == 2
        assert "exists already" in capsys.readouterr().err
    assert convert(whole, whole) == 2
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "precious"
    assert convert(whole, tmp_path / "empty") == 0
    assert convert("verify", whole, tmp_path / "empty") == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_midway_nothing_has_the_targets_name_and_the_next_run_is_whole(tmp_path, number):
    """As soon as bytes appear in the working folder. What SIGKILL leaves there, the next run removes."""
    model = replace(TINY, hidden_size=256, ffn_size=1024, num_layers=12)
    checkpoint(tmp_path / "source", with_optimizer(weights(model, torch.bfloat16)), model)
    arguments = command(tmp_path / "source", tmp_path / "target", "--tensor", 2)
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".target.*.tmp/*.distcp")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 1), said
    left = [path.name for path in tmp_path.iterdir() if path.name != "source"]
    assert all(name.startswith(".target.") for name in left) and bool(left) == (number == signal.SIGKILL)
    assert convert(tmp_path / "source", tmp_path / "target", "--tensor", 2) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert convert("verify", tmp_path / "source", tmp_path / "target") == 0


def test_a_full_disk_is_one_message(tmp_path, capsys, whole, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    assert convert(whole, tmp_path / "target") == 1
    assert "No space left on device; nothing was written" in capsys.readouterr().err
    assert files(tmp_path) == []


def test_a_working_folder_of_a_living_process_is_left_alone(tmp_path):
    with staging.staged(tmp_path / "out") as first:
        other = first.with_name(first.name.replace(str(first.name.split(".")[-2]), "1"))
        other.mkdir()  # process 1 lives
        (first / "a").write_text("x")
    assert other.is_dir() and (tmp_path / "out" / "a").read_text() == "x"
