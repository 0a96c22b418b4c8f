"""How many documents get a variant, which, and what is known of it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.augment.share import Refused, augment, check, choose
from preprocess.pipeline import Tally
from tests.preprocess.augment.conftest import documents


def shout(chosen):
    return [document.text.upper() for document in chosen]


@given(st.integers(0, 60), st.sampled_from([0.01, 0.1, 0.2, 0.3, 1 / 3, 0.5]), st.integers(0, 5))
def test_never_more_variants_than_the_cap_whatever_the_batch(number, max_share, seed):
    out = augment("loud", max_share, seed, shout)(documents(*["text"] * number), Tally())
    variants = sum("augmented" in document.metadata for document in out)
    assert Fraction(variants) <= Fraction(str(max_share)) * len(out)


@pytest.mark.parametrize("max_share, variants", [(0.5, 2000), (0.2, 500), (0.1, 222)])
def test_the_cap_is_nearly_reached(max_share, variants):
    chosen = choose(documents(*["text"] * 2000), "loud", max_share, 0)
    assert 0.8 * variants <= len(chosen) <= variants


def test_below_the_cap_the_choice_does_not_depend_on_neighbours_or_order():
    all_of_them = documents(*map(str, range(300)))
    chosen = {all_of_them[place].id for place in choose(all_of_them, "loud", 0.2, 3)}
    some = all_of_them[::-2]
    again = {some[place].id for place in choose(some, "loud", 0.2, 3)}
    assert len(again - chosen) <= 3 and len(again & chosen) > 20  # the cap may have left out a few of the greater draws


def test_seed_and_step_choose_others():
    choices = [choose(documents(*map(str, range(50))), *args) for args in [("a", 0.2, 0), ("b", 0.2, 0), ("a", 0.2, 1)]]
    assert len({tuple(choice) for choice in choices}) == 3


def test_a_variant_follows_its_original_and_names_it():
    original = documents("one", licence="MIT")
    out = augment("loud", 0.5, 0, shout)(original, Tally())
    assert out[0] is original[0] and original[0].metadata == {"licence": "MIT"}
    assert out[1] == dataclasses.replace(
        original[0], text="ONE", id="d0/loud-1", metadata={"licence": "MIT", "parent": "d0", "augmented": "loud"}
    )


def test_variants_of_an_earlier_step_get_none_and_count_against_the_cap():
    once = augment("loud", 0.2, 0, shout)(documents(*["text"] * 40), Tally())
    twice = augment("quiet", 0.2, 0, shout)(once, Tally())
    variants = [document for document in twice if "augmented" in document.metadata]
    assert len(variants) <= 0.2 * len(twice) and all(document.id.count("/") == 1 for document in variants)
    assert len(augment("quiet", 0.5, 0, shout)(once, Tally())) > len(once)


def test_a_refused_variant_is_counted_and_its_original_stays():
    tally = Tally()
    refuse_first = augment("loud", 0.5, 0, lambda chosen: [Refused("dull"), *shout(chosen[1:])])
    out = refuse_first(documents("a", "b"), tally)
    assert [document.text for document in out] == ["a", "b", "B"]
    assert tally.changed == {"not augmented: dull": 1, "augmented": 1} and not tally.dropped


def test_blank_texts_get_no_variant_and_make_no_room_for_one():
    assert choose(documents(" ", "", "a"), "loud", 0.4, 0) == []


@pytest.mark.parametrize("max_share", [0, -0.1, 0.51, 1, float("nan")])
def test_a_share_that_cannot_be_is_refused(max_share):
    with pytest.raises(ValueError, match="max_share"):
        check("loud", max_share)
