"""Chat data the whole way: records -> steps -> de-duplication -> tokens, mask and packs on disk -> training samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from megatron_ext.config.schema import Data, Label, Source, Tokenizer, TokenizerKind
from preprocess import readers
from preprocess.label.packed import Packs
from preprocess.prepare import prepare
from preprocess.tokenizer.huggingface import HuggingFace
from preprocess.verify import problems
from tests.preprocess.conftest import content, write_jsonl
from tests.preprocess.label.conftest import CHATML


def chats(number: int) -> list:
    turns = [
        {"role": "user", "content": f"What is {number} plus one?"},
        {"role": "assistant", "content": str(number + 1)},
    ]
    return [{"role": "system", "content": "Mail me\u200b: anna@mail.org"}, *turns]


@pytest.fixture
def data(tmp_path: Path, tokenizer_file: Path):
    (tmp_path / "chatml.jinja").write_text(CHATML)
    records = [{"id": f"c{n}", "messages": chats(n)} for n in (*range(40), 3, 5)]
    records += [{"id": "p", "prompt": "Say hi", "completion": "hi"}, {"id": "bad", "messages": []}]
    write_jsonl(tmp_path / "in.jsonl", records)

    def make(workers: int = 1, **more) -> Data:
        label = Label(template=str(tmp_path / "chatml.jinja"), pack_length=256)
        source = Source(
            inputs=[str(tmp_path / "in.jsonl")],
            output=str(tmp_path / "out"),
            label=label,
            steps=["normalise", "protect", "duplicates"],
            workers=workers,
            **more,
        )
        return Data(tokenizer=Tokenizer(kind=TokenizerKind.huggingface, path=str(tokenizer_file)), source=source)

    return make


def test_only_answers_are_learned_and_packs_hold_whole_conversations(tmp_path, data, tokenizer_file):
    made = prepare(data())
    assert (made.read, made.kept) == (44, 41) and sum(made.dropped.values()) == 3
    assert made.dropped["duplicates: duplicate"] == 2 and not made.append_eod
    assert not list(problems(str(tmp_path / "out")))
    packs, decode = Packs(str(tmp_path / "out")), HuggingFace(tokenizer_file.read_bytes()).decode
    learned, whole = [], []
    for pack in (packs[number] for number in range(len(packs))):
        assert len(pack.ids) <= 256
        for begin, end in zip(pack.boundaries, pack.boundaries[1:]):
            assert pack.positions[begin:end].tolist() == list(range(end - begin))
            whole.append(decode(pack.ids[begin:end].tolist()))
            learned.append(decode(pack.ids[begin:end][pack.mask[begin:end] == 1].tolist()))
    answers = sorted([*(f"{n + 1}<|im_end|>" for n in range(40)), "hi<|im_end|>"])
    assert sorted(text.strip() for text in learned) == answers
    assert sum("Mail me: <EMAIL>" in text for text in whole) == 40, "what the steps changed is in the conversation"


def test_the_same_bytes_for_any_number_of_workers(tmp_path, data, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_RECORDS", 7)
    results = []
    for workers in (1, 2):
        prepare(data(workers), force=True)
        extra = {kind: (tmp_path / f"out.{kind}").read_bytes() for kind in ("mask", "packs")}
        results.append({**content(tmp_path), **extra})
    assert results[0] == results[1]


def test_training_gets_packs_with_their_boundaries(tmp_path, data):
    from megatron_ext.data.packed import Packs as Training
    from megatron_ext.data.source import Source as Shards

    made = prepare(data())
    samples = Training(Shards(str(tmp_path / "out")), "1,0,0", "train", 256, seed=1)
    learned = sum(int(samples.sample(number).learned.sum()) for number in range(samples.per_epoch))
    mask = np.fromfile(tmp_path / "out.mask", np.uint8)
    assert learned == mask.sum() and made.tokens == len(mask)


def test_a_template_that_cannot_work_is_refused_before_any_record_is_read(tmp_path, data):
    (tmp_path / "chatml.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="chatml.jinja|template"):
        prepare(data())
    with pytest.raises(ValueError, match="go to one shard"):
        prepare(data(shard_tokens=10))
    assert json.loads((tmp_path / "in.jsonl").read_text().splitlines()[0])["id"] == "c0"


def test_another_choice_of_turns_is_another_content(tmp_path, data):
    """The tokens are the same, what is learned of them is not: training must not go on as if nothing had changed."""
    first = prepare(data())
    label = dataclasses.replace(data().source.label, train_on=["user", "assistant"])
    made = data()
    second = prepare(dataclasses.replace(made, source=dataclasses.replace(made.source, label=label)))
    assert first.tokens == second.tokens and first.fingerprint != second.fingerprint
    assert not list(problems(str(tmp_path / "out")))
    mask = np.fromfile(tmp_path / "out.mask", np.uint8)
    mask[int(np.argmax(mask))] = 0
    mask.tofile(tmp_path / "out.mask")
    assert "their content was changed" in "\n".join(problems(str(tmp_path / "out")))
