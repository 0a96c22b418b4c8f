"""Rules about files: shards, their sidecars, the tokenizer, a checkpoint to start from."""

from __future__ import annotations

import hashlib
import json

from megatron_ext.config import validate
from tests.megatron_ext.runs import complaint, run_with


def write_stand_in(prefix, vocab_size=100, fingerprint="f"):
    for suffix in (".bin", ".idx"):
        prefix.with_suffix(suffix).write_bytes(b"x")
    prefix.with_suffix(".json").write_text(json.dumps({"tokenizer": {"vocab_size": vocab_size, "sha256": fingerprint}}))
    return str(prefix)


def test_shards_that_are_there_pass(tmp_path):
    a, b = write_stand_in(tmp_path / "a"), write_stand_in(tmp_path / "b")
    validate.check(run_with(**{"data.blend": [a], "model.vocab_size": 100}))
    validate.check(run_with(**{"data.blend": [a, b], "data.weights": [0.5, 1e-6]}))


def refused(**values):
    return complaint(check=validate.check, **values)


def test_missing_and_damaged_shards_are_named(tmp_path):
    assert "data.blend is empty" in refused()
    missing = tmp_path / "nowhere"
    assert f"shard {missing}: no .bin and no .idx and no .json" in refused(**{"data.blend": [str(missing)]})
    a = write_stand_in(tmp_path / "a")
    (tmp_path / "a.bin").unlink()
    assert f"shard {a}: no .bin; make it with llm-preprocess" in refused(**{"data.blend": [a]})
    for text in ("", "{", "[]", "{}", '{"tokenizer": {"vocab_size": "many", "sha256": "f"}}', "null", "\x00"):
        b = write_stand_in(tmp_path / "b")
        (tmp_path / "b.json").write_text(text)
        assert f"{b}.json is damaged; run llm-preprocess again" in refused(**{"data.blend": [b]}), text
    (tmp_path / "b.json").write_bytes(b"\xff\xfe")
    assert "b.json is damaged" in refused(**{"data.blend": [b]})


def test_weights(tmp_path):
    a = write_stand_in(tmp_path / "a")
    answer = refused(**{"data.blend": [a], "data.weights": [1.0, 2.0]})
    assert "2 entries for 1 shards" in answer and "give one each" in answer
    for weight in (0.0, -1.0):
        assert f"data.weights=[{weight}]" in refused(**{"data.blend": [a], "data.weights": [weight]})
    assert "data.weights has 1 entries for 0 shards" in refused(**{"data.weights": [1.0]})


def test_vocabulary(tmp_path):
    a = write_stand_in(tmp_path / "a", vocab_size=5000)
    answer = refused(**{"data.blend": [a], "model.vocab_size": 4999})
    assert "ids up to 4999" in answer and "model.vocab_size=4999" in answer and "set model.vocab_size=5000" in answer
    validate.check(run_with(**{"data.blend": [a], "model.vocab_size": 5000}))


def test_tokenizers(tmp_path):
    tokenizer = tmp_path / "t.model"
    tokenizer.write_bytes(b"pieces")
    right = hashlib.sha256(b"pieces").hexdigest()
    a, b = write_stand_in(tmp_path / "a", fingerprint=right), write_stand_in(tmp_path / "b", fingerprint="other")
    path = {"data.tokenizer.path": str(tokenizer)}
    validate.check(run_with(**{"data.blend": [a], **path}))
    assert "made by another tokenizer than" in refused(**{"data.blend": [b], **path})
    assert "different tokenizers" in refused(**{"data.blend": [a, b]})
    answer = refused(**{"data.blend": [a], "data.tokenizer.path": "/nowhere/t.model"})
    assert "tokenizer /nowhere/t.model does not exist; correct data.tokenizer.path" in answer


def test_initial_weights_must_exist(tmp_path):
    a = write_stand_in(tmp_path / "a")
    assert "train.init_from=/nowhere" in refused(**{"data.blend": [a], "train.init_from": "/nowhere"})
    validate.check(run_with(**{"data.blend": [a], "train.init_from": str(tmp_path)}))


def test_broken_rules_and_missing_files_come_together():
    answer = refused(**{"parallel.pipeline": 3, "data.blend": ["/nowhere"]})
    assert "parallel.pipeline=3" in answer and "/nowhere" in answer
