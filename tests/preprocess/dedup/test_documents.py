"""Equal and alike documents: who goes, who stays, and that neither parts nor memory have a say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess.dedup import minhash
from preprocess.dedup.documents import Duplicates, NearDuplicates
from tests.preprocess.dedup.compared import compare, cut, documents, write_round

BOTH = [Duplicates(), NearDuplicates()]
SENTENCES = [
    " ".join(random.Random(seed).choices("alpha beta gamma delta fox dog jug box hex tea".split(), k=60))
    for seed in range(9)
]


def left(folder: Path, comparison, texts, places=(), **more):
    kept, tally = compare(folder, comparison, cut(documents(texts), list(places)), **more)
    return [document.id for document in kept], {document.id: why.detail for document, why in tally.aside}


@pytest.mark.parametrize("comparison", BOTH)
def test_one_of_a_cluster_stays_and_the_others_name_it(tmp_path, comparison):
    """D20: text-dedup once removed all of them."""
    a, b = SENTENCES[:2]
    assert left(tmp_path, comparison, [a, a, b, a], [1]) == (["d0", "d2"], {"d1": "of d0", "d3": "of d0"})


@pytest.mark.parametrize("comparison", BOTH)
def test_short_texts_are_not_all_alike(tmp_path, comparison):
    """D04: fewer words than a shingle has."""
    texts = ["cat", "dog", "cat", "a sentence like this", "猫", "狗", "!!!", "???", "", "a sentence like"]
    assert left(tmp_path, comparison, texts) == ([f"d{n}" for n in range(10) if n != 2], {"d2": "of d0"})


@settings(max_examples=30)
@given(
    texts=st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=40),
    places=st.lists(st.integers(0, 40), max_size=5),
    memory=st.sampled_from([1, 200, 1 << 20]),
)
@pytest.mark.parametrize("comparison", BOTH)
def test_the_first_of_each_stays_whatever_the_parts_and_the_memory(tmp_path_factory, comparison, texts, places, memory):
    first = {text: f"d{n}" for n, text in reversed(list(enumerate(texts)))}
    kept, gone = left(tmp_path_factory.mktemp("round"), comparison, texts, places, memory=memory)
    assert kept == [f"d{n}" for n, text in enumerate(texts) if first[text] == f"d{n}"]
    assert gone == {f"d{n}": f"of {first[text]}" for n, text in enumerate(texts) if first[text] != f"d{n}"}


@pytest.mark.parametrize(
    "settings, equal",
    [
        ({}, 0),
        ({"ignore_case": True}, 1),
        ({"ignore_space": True}, 1),
        ({"ignore_case": True, "ignore_space": True}, 3),
    ],
)
def test_what_counts_as_equal(tmp_path, settings, equal):
    kept, gone = left(tmp_path, Duplicates(**settings), ["One two", "one two", "One  two\n", "ONE\ttwo"])
    assert len(gone) == equal


def test_near_duplicates_do_not_mind_case_and_punctuation(tmp_path):
    texts = [
        SENTENCES[0],
        SENTENCES[0].upper() + "!",
        SENTENCES[0].replace(" ", ", ").replace("fox", "“fox”"),
        SENTENCES[1],
    ]
    assert left(tmp_path, NearDuplicates(), texts)[0] == ["d0", "d3"]


def planted(edits: float, copies: int = 150, words: int = 300):
    """Originals of random words, then a copy of each with that share of its words replaced."""
    random_ = random.Random(7)
    vocabulary = [f"w{n}" for n in range(5000)]
    originals = [random_.choices(vocabulary, k=words) for _ in range(copies)]
    changed = [[random_.choice(vocabulary) if random_.random() < edits else w for w in text] for text in originals]
    return [" ".join(text) for text in originals + changed]


@pytest.mark.parametrize("edits, least, most", [(0, 1, 1), (0.01, 0.97, 1), (0.03, 0.65, 0.95), (0.3, 0, 0.01)])
def test_recall_is_that_of_the_curve(tmp_path, edits, least, most):
    """Most copies with few edits are found, none of what is half new; and nothing that is no copy."""
    texts = planted(edits)
    kept, gone = left(tmp_path, NearDuplicates(), texts)
    found = {int(one[1:]) for one in gone}
    assert all(number >= 150 and gone[f"d{number}"] == f"of d{number - 150}" for number in found)
    assert least <= len(found) / 150 <= most


def test_verify_keeps_what_only_seemed_alike(tmp_path):
    """With a low threshold of the bands and a high one of the check."""
    texts = planted(0.05)
    loose = NearDuplicates(similarity=0.5)
    assert len(left(tmp_path / "a", loose, texts)[1]) > 100
    strict = NearDuplicates(similarity=0.5, verify=True)
    kept, tally = compare(tmp_path / "b", strict, cut(documents(texts), [170]))
    gone = {int(document.id[1:]) for document, _ in tally.aside}
    assert 50 < len(gone) and tally.changed["pairs that were not as alike as they seemed"] > 0
    assert all(minhash.jaccard(texts[n], texts[n - 150], 5) >= 0.5 for n in gone)


def test_a_key_that_all_share_costs_one_pair_each(tmp_path):
    """Boilerplate a thousand times: pairs grow with the documents, not with their square."""
    comparison = NearDuplicates()
    round = write_round(tmp_path, comparison, [documents([SENTENCES[0]] * 1000)], memory=4000)
    comparison.search(0, round)
    assert round.found(0).stat().st_size == 999 * 16


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_the_threshold_is_where_half_are_found(similarity):
    scheme = minhash.scheme_for(similarity, 5, 1)
    assert scheme.bands * scheme.rows <= minhash.PLACES
    assert 0.25 < scheme.found(similarity) < 0.75
    assert scheme.found(similarity - 0.15) < 0.2 and scheme.found(min(1, similarity + 0.15)) > 0.8


def test_signatures_estimate_the_similarity():
    """Equal places as a share, over pairs of known similarity, within three standard errors of the mean."""
    scheme = minhash.Scheme(minhash.PLACES, 1, 5, 3)  # a band a place
    texts = planted(0.03, copies=60)
    bands = minhash.band_hashes(texts, scheme)
    estimated = (bands[:60] == bands[60:]).mean()
    exact = np.mean([minhash.jaccard(texts[n], texts[n + 60], 5) for n in range(60)])
    assert abs(estimated - exact) < 3 * minhash.standard_error(60 * minhash.PLACES, exact) * 2


def test_a_signature_depends_on_nothing_but_the_text():
    texts = [*planted(0.1, copies=5), "short", "", "猫が好き。" * 40, "x" * 700_000, "word " * 120_000]
    scheme = minhash.scheme_for(0.7, 5, 1)
    together = minhash.band_hashes(texts, scheme)
    alone = np.concatenate([minhash.band_hashes([text], scheme) for text in texts])
    assert np.array_equal(together, alone)
    assert not np.array_equal(alone, minhash.band_hashes(texts, minhash.scheme_for(0.7, 5, 2)))


# --- the index (D21) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Duplicates, NearDuplicates])
def test_new_data_is_compared_with_what_is_remembered(tmp_path, kind):
    """D21: datatrove once deleted from a file that does not exist, and could not say of which document."""
    comparison = kind(index=str(tmp_path / "index"))
    a, b, c = SENTENCES[:3]

    def run(name, texts, first):
        parts = [documents(texts, first)]
        kept, tally = compare(tmp_path / name, comparison, parts, output=f"/data/{name}")
        comparison.remember(write_round_again(tmp_path / name, comparison, parts, name), f"stamp-{name}")
        return [d.id for d in kept], [why.detail for _, why in tally.aside]

    def write_round_again(folder, comparison, parts, name):
        return __import__("preprocess.dedup", fromlist=["Round"]).Round(folder, 1, 1 << 20, f"/data/{name}")

    assert run("one", [a, b, a], 0) == (["d0", "d1"], ["of d0"])
    state = comparison.state("/data/two")
    assert run("two", [a, c], 10) == (["d11"], ["of /data/one: d0"])
    assert run("two", [a, c], 10) == (["d11"], ["of /data/one: d0"]), "a run does not meet itself"
    assert comparison.state("/data/two") == state != comparison.state("/data/three")
    assert run("three", [c, b], 20) == ([], ["of /data/two: d11", "of /data/one: d1"])


def test_an_index_of_other_settings_is_refused(tmp_path):
    one = NearDuplicates(index=str(tmp_path / "index"))
    compare(tmp_path / "a", one, [documents(SENTENCES[:2])])
    one.remember(write_round(tmp_path / "a", one, [documents(SENTENCES[:2])]), "s")
    with pytest.raises(ValueError, match="was made with .*'ngram': 5"):
        NearDuplicates(index=str(tmp_path / "index"), ngram=3).state("other")


@pytest.mark.parametrize("wrong, said", [({"similarity": 1.5}, "similarity=1.5"), ({"ngram": 0}, "ngram=0"),
                                         ({"verify": True, "index": "x"}, "keeps no texts")])  # fmt: skip
def test_wrong_settings(wrong, said):
    with pytest.raises(ValueError, match=said):
        NearDuplicates(**wrong).open()
