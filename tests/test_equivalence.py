"""Every layout of the equivalence table trains like one rank: the limits of `make equivalence`, layout by layout."""

from __future__ import annotations

import pytest

from benchmarks.equivalence import (
    LOSS_LIMIT,
    MODELS,
    NORM_LIMIT,
    STEPS,
    compare,
    data_of,
    layout_overrides,
    trajectory,
    write_data,
)
from megatron_ext.config.load import compose
from megatron_ext.runtime.fork import run_ranks

CASES = [(model, layout) for model, (_, layouts) in MODELS.items() for layout in layouts]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Model name -> (its overrides, what one rank does)."""
    folder = tmp_path_factory.mktemp("equivalence")
    write_data(folder)
    found = {}
    for name, (overrides, _) in MODELS.items():
        overrides = [*overrides, data_of(name, folder)]
        found[name] = overrides, run_ranks(1, trajectory, compose(overrides))[0]
    return found


def test_the_single_rank_learns(references):
    """A comparison of runs that do nothing would prove nothing."""
    for _, reference in references.values():
        assert len(reference) == STEPS and reference[-1][0] < reference[0][0] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("model, layout", CASES, ids=[f"{model}: {layout}" for model, layout in CASES])
def test_layout_equals_one_rank(references, model, layout):
    overrides, reference = references[model]
    run = compose(overrides + layout_overrides(MODELS[model][1][layout]))
    loss, norm = compare(run, reference)
    assert loss <= LOSS_LIMIT and norm <= NORM_LIMIT


def test_the_comparison_sees_a_wrong_step(references):
    """Adam's eps changed by a factor of ten, everything else equal, is far outside the limits."""
    overrides, reference = references["llama (GQA)"]
    loss, norm = compare(compose([*overrides, "optim.eps=1e-4"]), reference)
    assert loss > 10 * LOSS_LIMIT and norm > 10 * NORM_LIMIT
