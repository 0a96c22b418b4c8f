"""What is left when something goes wrong, and what the same command does then."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preprocess import manifest, readers
from preprocess.prepare import prepare
from preprocess.shards import SUFFIXES, Shard
from preprocess.verify import problems
from tests.preprocess.conftest import WORDS, content, nothing_made, write_jsonl

FILES = sorted(f"out{suffix}" for suffix in SUFFIXES)


def shard_files(folder: Path) -> list:
    return sorted(path.name for path in folder.glob("out*") if path.is_file())


def seen(folder: Path) -> list:
    """Ids that the step Slow has worked on since the last call."""
    file = folder / "seen"
    ids = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return ids


def until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


# --- bad records -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_fails_the_run_and_spares_the_old_shard(tmp_path, make_data, monkeypatch, workers):
    """The first bad line in the order of the input is named, whichever worker met one first."""
    monkeypatch.setattr(readers, "BATCH_RECORDS", 2)
    prepare(make_data([{"text": "old"}]))
    before = content(tmp_path)
    data = make_data([{"text": "a"}] * 5 + [{"none": 1}] + [{"text": "b"}] * 3 + [{"none": 2}], workers=workers)
    with pytest.raises(ValueError, match=r"in.jsonl:6: no field 'text'"):
        prepare(data)
    assert content(tmp_path) == before and shard_files(tmp_path) == FILES


def test_a_line_number_is_that_of_the_file_in_a_later_part_too(tmp_path, make_data):
    """Parts of one file are read independently, and a person looks for the line in the file."""
    records = [{"text": WORDS}] * 2000 + [{"body": 1}]
    with pytest.raises(ValueError, match=r"in.jsonl:2001: no field 'text'"):
        prepare(make_data(records, part_bytes=1 << 16))


@pytest.mark.parametrize("bad, allowed, fails", [(2, 0, True), (2, 1, True), (2, 2, False), (2, 9, False)])
def test_some_bad_records_may_be_allowed(tmp_path, make_data, bad, allowed, fails):
    data = make_data([{"text": "a"}, {"x": 1}, {"text": "b"}, {"text": 5}], max_bad_records=allowed)
    if fails:
        with pytest.raises(ValueError, match=r"in.jsonl:(2|4): "):
            prepare(data)
        assert nothing_made(tmp_path)
        return
    made = prepare(data)
    assert (made.read, made.kept, made.unreadable, made.dropped) == (4, 2, 2, {})
    assert [place.split(": ")[0].rsplit(":")[-1] for place in made.unreadable_places] == ["2", "4"]
    assert not list(problems(str(tmp_path / "out")))


def test_a_cut_input_leaves_no_shard(tmp_path, make_data):
    """D15: what was read before the cut is not passed off as the whole."""
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b'{"text":"a"}\n' * 9)[:-5])
    with pytest.raises(ValueError, match="in.jsonl.gz is damaged"):
        prepare(make_data(inputs=[str(tmp_path / "in.jsonl.gz")]))
    assert nothing_made(tmp_path)


# --- killed, and again (D25) -------------------------------------------------------------------------------------


def test_a_killed_worker_fails_the_run(tmp_path, make_data, odd_steps):
    with pytest.raises(ChildProcessError, match="worker process died"):
        prepare(make_data([{"text": "a"}, {"text": "die"}], workers=2, steps=["Killed"]))
    assert nothing_made(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_in_the_middle_then_again(tmp_path, make_data, odd_steps, workers):
    """D25: kill -9 leaves no final name and no worker; the same command redoes no finished part and gives the bytes
    of an undisturbed run."""
    files = [tmp_path / f"in{n}.jsonl" for n in range(4)]
    for n, file in enumerate(files):
        write_jsonl(file, [{"text": WORDS[i:], "id": f"{n}-{i}"} for i in range(15)])
    data = make_data(inputs=list(map(str, files)), workers=workers, steps=["Slow"])
    code = f"""
from megatron_ext.config.schema import *
from preprocess.prepare import prepare
from tests.preprocess import steps
if __name__ == "__main__":
    steps.register()
    source = Source(inputs={data.source.inputs!r}, output={data.source.output!r}, workers={workers}, steps=["Slow"])
    prepare(Data(tokenizer=Tokenizer(path={data.tokenizer.path!r}), source=source))
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: (tmp_path / "out.work/pass-0/part-00001.json").exists())
    process.kill()
    process.wait()
    assert nothing_made(tmp_path)
    pids = [path.suffix[1:] for path in tmp_path.glob("pid.*")]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    seen(tmp_path)

    prepare(data)
    again, redone = content(tmp_path), seen(tmp_path)
    assert redone and not any(id.startswith(("0-", "1-")) for id in redone)
    assert shard_files(tmp_path) == FILES and not (tmp_path / "out.work").exists()
    prepare(dataclasses.replace(data, source=dataclasses.replace(data.source, output=str(tmp_path / "calm"))))
    assert content(tmp_path, "calm") == again


@pytest.mark.parametrize("renames", range(4))
def test_killed_between_two_renames(tmp_path, make_data, monkeypatch, renames):
    """Replacing a shard: at no moment does a manifest stand beside files of another run."""
    prepare(make_data([{"text": "old"}]))
    calls = iter(range(renames))

    def replace(source, target, real=os.replace):
        if Path(target).parent == tmp_path and next(calls, None) is None:
            raise KeyboardInterrupt
        real(source, target)

    data = make_data([{"text": "new"}, {"text": "newer"}])
    with monkeypatch.context() as patch:
        patch.setattr("preprocess.merge.os.replace", replace)
        with pytest.raises(KeyboardInterrupt):
            prepare(data)
    assert not (tmp_path / "out.json").exists()
    prepare(data)
    assert len(Shard(str(tmp_path / "out"))) == 2 and not list(problems(str(tmp_path / "out")))


def test_two_at_once_are_refused(tmp_path, make_data):
    data = make_data([{"text": "a"}])
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "out.work").mkdir()
        owner = {"host": os.uname().nodename, "pid": other.pid, "job": ""}
        (tmp_path / "out.work/lock.json").write_text(json.dumps(owner))
        with pytest.raises(ValueError, match=f"being made by pid {other.pid}"):
            prepare(data)
        assert (tmp_path / "out.work/lock.json").exists()
        other.send_signal(signal.SIGKILL)
    prepare(data)
    assert shard_files(tmp_path) == FILES


# --- nothing stale is used (D26) ---------------------------------------------------------------------------------


def test_what_is_up_to_date_is_not_made_again(tmp_path, make_data, odd_steps):
    data = make_data([{"text": "a", "id": "1"}], steps=["Slow"])
    first = prepare(data)
    assert seen(tmp_path) == ["1"]
    assert prepare(data) == first and seen(tmp_path) == []
    assert prepare(data, force=True).fingerprint == first.fingerprint and seen(tmp_path) == ["1"]
    (tmp_path / "out.bin").unlink()  # a file was lost
    prepare(data)
    assert seen(tmp_path) == ["1"] and not list(problems(str(tmp_path / "out")))


def test_only_what_changed_is_redone(tmp_path, make_data, odd_steps, tokenizer_json):
    """D26: another content of a file, then another tokenizer; with keep_work unchanged files are not read again."""
    files = [tmp_path / name for name in ("in1.jsonl", "in2.jsonl")]
    for n, file in enumerate(files):
        write_jsonl(file, [{"text": f"text {n}", "id": f"file{n}"}])
    data = make_data(inputs=list(map(str, files)), steps=["Slow"], keep_work=True)
    prepare(data)
    assert seen(tmp_path) == ["file0", "file1"]
    write_jsonl(files[1], [{"text": "text 9", "id": "new"}])
    prepare(data)
    assert seen(tmp_path) == ["new"]
    other = make_data(inputs=list(map(str, files)), steps=["Slow"], keep_work=True, tokenizer=tokenizer_json)
    made = prepare(other)
    assert seen(tmp_path) == ["file0", "new"] and made.tokenizer.kind == "huggingface"
    assert not list(problems(str(tmp_path / "out"))) and manifest.read(str(tmp_path / "out")) == made


# --- wrong settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, said",
    [
        ({"output": ""}, "data.source.output is empty"),
        ({"output": "/tmp"}, "is a folder"),
        ({"output": "new/"}, "is a folder"),
        ({"workers": -1}, "data.source.workers=-1"),
        ({"part_bytes": 5}, "data.source.part_bytes=5; it must be at least 65536"),
        ({"inputs": []}, "data.source.inputs is empty"),
        ({"inputs": ["gone.jsonl"]}, "no file matches 'gone.jsonl'"),
        ({"text_key": "body"}, "no field 'body'"),
        ({"tokenizer": "gone.model"}, "gone.model does not exist.*train_vocab_size"),
        ({"tokenizer": ""}, "data.tokenizer.path is empty"),
        ({"steps": ["normalize"]}, "no step 'normalize' .did you mean 'normalise'"),
        ({"steps": [{"language": {"kepe": ["en"]}}]}, "no setting 'kepe' .did you mean 'keep'"),
        ({"steps": [{"language": {"keep": "en"}}]}, "keep='en' is str"),
        ({"steps": [["a", "b"]]}, "is not a step"),
    ],
)
def test_wrong_settings(tmp_path, make_data, monkeypatch, change, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        prepare(make_data([{"text": "a"}], **change))
    assert nothing_made(tmp_path)


def test_settings_there_and_back_again_use_nothing_of_the_others(tmp_path, make_data, odd_steps):
    """A decision about duplicates is made anew when the parts it speaks of are."""
    records = [{"text": text, "id": str(n)} for n, text in enumerate(["a b", "a b", "c d"])]
    one = make_data(records, steps=["duplicates"], keep_work=True)
    other = make_data(records, steps=["normalise", "duplicates"], keep_work=True)
    kept = [prepare(data).kept for data in (one, other, one, other, one)]
    assert kept == [2] * 5 and not list(problems(str(tmp_path / "out")))


@pytest.mark.parametrize("lost", [".bin", ".idx", ".parquet"])
def test_a_lost_file_is_made_again(tmp_path, make_data, lost):
    data = make_data([{"text": "a"}])
    prepare(data)
    (tmp_path / f"out{lost}").unlink()
    prepare(data)
    assert not list(problems(str(tmp_path / "out")))


def test_fewer_bad_records_allowed_than_before_is_not_up_to_date(make_data):
    prepare(make_data([{"text": "a"}, {"x": 1}], max_bad_records=1))
    with pytest.raises(ValueError, match="in.jsonl:2: no field 'text'"):
        prepare(make_data([{"text": "a"}, {"x": 1}]))


def test_a_changed_file_of_a_step_is_noticed(tmp_path, make_data):
    """Sets, models, word lists: at the same path they may be others."""
    (tmp_path / "bad.txt").write_text("fox\n")
    data = make_data(
        [{"text": "the fox. a dog. a jug. so it is."}], steps=[{"c4": {"bad_words": str(tmp_path / "bad.txt")}}]
    )
    with pytest.raises(ValueError, match="1 c4: bad word"):
        prepare(data)
    (tmp_path / "bad.txt").write_text("cat\n")
    assert prepare(data).kept == 1


def test_json_as_deep_as_can_be_is_a_bad_record(make_data):
    deep = '{"text": "a", "x": ' + "[" * 1010 + "]" * 1010 + "}"
    data = make_data([], max_bad_records=1)
    Path(data.source.inputs[0]).write_text(deep + '\n{"text": "b"}\n')
    assert prepare(data).kept >= 1
