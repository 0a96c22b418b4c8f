"""Blends: each source its share at every moment, whatever the weights; and the report of what is seen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_ext.config.load import compose, freeze
from megatron_ext.data import blending
from megatron_ext.data.mixture import Mixture
from megatron_ext.data.samples import Blend
from tests.megatron_ext.test_samples import numbered, samples_of, write


def blend_of(tmp_path, weights):
    sources = [numbered(tmp_path, [50] * 4, name=f"s{i}") for i in range(len(weights))]
    return Blend([samples_of(source, "1,0,0", "train", 9, i) for i, source in enumerate(sources)], weights)


HARDEST = [1, 1e-3, 1.001, 1.002, 2.01, 3.02, 5.03, 8.05, 13.1, 21.2]  # a heavy source next to a tiny one, far down


@given(
    weights=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50) | st.just(HARDEST),
    number=st.integers(0, 5000) | st.integers(0, 2**33),
)
def test_at_every_moment_each_source_has_its_share(weights, number):
    """Within half a sample for two sources, 1 for three, 1.68 for more; and the parts agree with the whole."""
    mixture = Mixture(weights)
    counts = mixture.counts(number)
    limit = {1: 0, 2: 0.5, 3: 1}.get(len(weights), 1.68) + 0.02  # weights of 40 bits, 2^33 samples: 0.004 a step
    assert sum(counts) == number
    assert all(abs(count - share * number) <= limit for count, share in zip(counts, mixture.shares))
    assert mixture.place(number) == (source := mixture.place(number)[0], counts[source])
    assert [b - a for a, b in zip(counts, mixture.counts(number + 1))] == [
        int(n == source) for n in range(len(weights))
    ]


@given(weights=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), begin=st.integers(0, 2**50))
def test_many_places_at_once_are_those_one_by_one(weights, begin):
    mixture = Mixture(weights)
    sources, numbers = mixture.places(begin, begin + 200)
    assert list(zip(sources.tolist(), numbers.tolist())) == [mixture.place(n) for n in range(begin, begin + 200)]


@pytest.mark.parametrize("weights, number, counts", [([0.999, 0.001], 12, [12, 0]), ([1 - 1e-6, 1e-6], 12, [12, 0]),
                                                     ([0.9999, 0.0001], 5, [5, 0]), ([1, 1], 5, [2, 3])])  # fmt: skip
def test_a_tiny_weight_gets_what_it_is_worth(weights, number, counts):
    """D32, D33: never more samples than it has, and none is no error."""
    assert Mixture(weights).counts(number) == counts


def test_counts_stay_exact_beyond_32_bits():
    """D11: of 2^36 samples, which are 280 million million tokens, a third is a third."""
    assert abs(Mixture([1, 2]).counts(2**36)[0] - 2**36 / 3) < 1
    assert Mixture([1, 1, 2]).counts(2**62) == [2**60, 2**60, 2**61]


@pytest.mark.parametrize("weights", [[], [0.0, 1.0], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(ValueError, match="above 0 and finite"):
        Mixture(weights)


def test_one_source_is_read_in_order_for_ever(tmp_path):
    blend = blend_of(tmp_path, [0.3])
    assert blend.place(10**14) == (0, 10**14)
    assert blend.sample(3).tokens.tolist() == blend.sources[0].tokens(3).tolist()
    assert len(blend.sample(10**15).tokens) == 10


def mixed(tmp_path, *overrides):
    big, small = (write(tmp_path / name, [[[1] * 100] * n]) for name, n in (("big", 16), ("small", 4)))
    run = compose([f"data.blend=[{big},{small}]", "model.seq_length=10", "data.split='1,0,0'", *overrides])
    return run, blending.blend(run, "train")


@pytest.mark.parametrize(
    "overrides, counts",
    [
        ([], [800, 200]),  # by tokens: 16 to 4
        (["data.temperature=2"], [667, 333]),  # by their roots: 4 to 2
        (["data.weights=[1,3]"], [250, 750]),
        (["data.epochs=[1,2]"], [669, 331]),  # 159 and 39 samples an epoch: 159 to 78... by epochs
    ],
)
def test_ways_to_weigh(tmp_path, overrides, counts):
    run, blend = mixed(tmp_path, *overrides)
    found = blend.mixture.counts(1000)
    assert all(abs(a - b) <= 3 for a, b in zip(found, counts)), found
    if overrides and "epochs" in overrides[0]:
        seen = [count / source.per_epoch for count, source in zip(blend.mixture.counts(10_000), blend.sources)]
        assert seen[1] / seen[0] == pytest.approx(2, rel=0.01)


def test_the_report_says_what_is_seen_of_each_source(tmp_path, capsys):
    run, blend = mixed(tmp_path, "data.weights=[0.999,0.001]", "train.steps=2", "train.global_batch_size=8")
    report = blending.report(run, blend, 16)
    assert [row["samples"] for row in report["sources"]] == [16, 0] and report["tokens"] == 160
    assert report["without_a_sample"] == [str(tmp_path / "small")] and report["effective_sources"] == 1
    run, blend = mixed(tmp_path, "data.weights=[1,1]")
    report = blending.report(run, blend, 400)
    assert report["effective_sources"] == pytest.approx(2) and report["simpson"] == pytest.approx(0.5)
    assert report["sources"][1]["epochs"] == pytest.approx(200 / 39) and report["sources"][1]["repeated"] > 0.8
    from megatron_ext.data import index

    overrides = [f"data.blend=[{tmp_path}/big,{tmp_path}/small]", "data.weights=[0.999,0.001]", "model.seq_length=10"]
    assert index.main([*overrides, "train.steps=2"]) == 0
    assert "small gets no sample" in capsys.readouterr().out
    assert index.main([*overrides, "--json"]) == 0 and json.loads(capsys.readouterr().out)["samples"] == 800
    assert index.main(["data.blend=[gone]"]) == 2 and "gone.idx does not exist" in capsys.readouterr().err
    assert index.main([*overrides, "data.weights=[1]"]) == 2
    assert "data.weights has 1 entries for 2 shards" in capsys.readouterr().err


def test_the_files_of_a_run_are_made_ahead_without_torch(tmp_path):
    """On a login node, of the folder that a launch has frozen."""
    run, _ = mixed(tmp_path, f"data.cache={tmp_path}/cache", "train.steps=50", "data.weights=[1,1]")
    (tmp_path / "run").mkdir()
    freeze(run, tmp_path / "run" / "run.yaml")
    code = (
        "import sys; from megatron_ext.data import index, order; order.IN_MEMORY = 0; "
        f"code = index.main([{str(tmp_path / 'run')!r}]); sys.exit(code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    epochs = -(-200 // 159) - (-200 // 39)  # of the 400 samples each source has 200
    assert len(list((tmp_path / "cache").iterdir())) == 2 * epochs
