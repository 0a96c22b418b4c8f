"""Learning rate: exact at the corners, bounded, continuous, a function of the step alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_ext.config.schema import Optim, Schedule
from megatron_ext.optim.schedule import learning_rate


def curve(schedule, steps=100, **fields):
    optim = Optim(lr=1.0, min_lr=0.1, schedule=schedule, **fields)
    return [learning_rate(step, optim, steps) for step in range(steps)]


def test_warm_up_is_linear_and_reaches_lr_with_its_last_step():
    for schedule in Schedule:
        rates = curve(schedule, warmup_fraction=0.05)
        assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], abs=1e-15)


def test_cosine_is_half_way_in_the_middle_and_ends_at_min_lr():
    rates = curve(Schedule.cosine, warmup_fraction=0.0)
    assert rates[49] == pytest.approx(0.55, abs=1e-15)
    assert rates[24] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)), abs=1e-15)
    assert rates[0] < 1.0 and rates[99] == pytest.approx(0.1, abs=1e-15)


def test_linear_falls_by_equal_parts():
    rates = curve(Schedule.linear, warmup_fraction=0.1)
    assert rates[9] == 1.0 and rates[99] == pytest.approx(0.1, abs=1e-15)
    assert rates[54] == pytest.approx(0.55, abs=1e-15)
    falls = [a - b for a, b in zip(rates[9:], rates[10:])]
    assert falls == pytest.approx([0.9 / 90] * 90, abs=1e-12)


def test_wsd_is_flat_until_its_decay():
    rates = curve(Schedule.wsd, warmup_fraction=0.1, decay_fraction=0.2)
    assert set(rates[9:80]) == {1.0}
    assert rates[80] == pytest.approx(1 - 0.9 / 20, abs=1e-12) and rates[99] == pytest.approx(0.1, abs=1e-15)


def test_wsd_decays_after_the_warm_up_when_the_two_overlap():
    rates = curve(Schedule.wsd, warmup_fraction=0.6, decay_fraction=0.6)
    assert max(rates) == rates[59] == 1.0 and rates[99] == pytest.approx(0.1, abs=1e-15)


def test_constant_stays():
    assert set(curve(Schedule.constant, warmup_fraction=0.1)[9:]) == {1.0}


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_run_of_one_step(schedule):
    """With a warm-up the only step ends it, at lr; without one it is the last step, at min_lr."""
    assert curve(schedule, steps=1, warmup_fraction=0.05) == [1.0]
    last = 1.0 if schedule == Schedule.constant else 0.1
    assert curve(schedule, steps=1, warmup_fraction=0.0) == pytest.approx([last])


@st.composite
def cases(draw):
    lr = draw(st.floats(1e-8, 10))
    warmup = draw(st.integers(0, 990)) / 1000
    optim = Optim(
        lr=lr,
        min_lr=lr * draw(st.floats(0, 1)),
        schedule=draw(st.sampled_from(list(Schedule))),
        warmup_fraction=warmup,
        decay_fraction=draw(st.integers(0, 999 - round(1000 * warmup))) / 1000,
    )
    return optim, draw(st.integers(1, 300))


@given(case=cases())
def test_any_schedule_is_bounded_warms_up_in_time_and_ends_at_min_lr(case):
    optim, steps = case
    warmup = -(-round(1000 * optim.warmup_fraction) * steps // 1000)  # in whole numbers, rounded up
    rates = [learning_rate(step, optim, steps) for step in range(steps)]
    assert all(0 <= rate <= optim.lr * (1 + 1e-12) for rate in rates)
    assert all(rate >= optim.min_lr * (1 - 1e-12) for rate in rates[warmup:])
    assert rates[:warmup] == sorted(rates[:warmup]) and all(rate < optim.lr for rate in rates[: max(warmup - 1, 0)])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    if warmup:
        assert rates[warmup - 1] == pytest.approx(optim.lr, rel=1e-12)
    decays = optim.schedule in (Schedule.cosine, Schedule.linear) or (
        optim.schedule == Schedule.wsd and optim.decay_fraction > 0
    )
    if decays and warmup < steps:
        assert rates[-1] == pytest.approx(optim.min_lr, rel=1e-9, abs=1e-12 * optim.lr)


@given(case=cases(), more=st.integers(2, 50))
def test_no_schedule_jumps(case, more):
    """The step between neighbours is at most what a cosine over the shortest phase would make."""
    optim, _ = case
    steps = 100 * more
    phases = [max(math.ceil(optim.warmup_fraction * steps), 1)]
    warmup = phases[0] if optim.warmup_fraction else 0
    phases.append(max(steps - warmup, 1))
    if optim.schedule == Schedule.wsd:
        phases.append(max(math.ceil(optim.decay_fraction * steps), 1))
    rates = [learning_rate(step, optim, steps) for step in range(steps)]
    largest = max(abs(a - b) for a, b in zip(rates, rates[1:]))
    assert largest <= optim.lr * (math.pi / 2) / min(phases) + 1e-12


@given(case=cases(), after=st.integers(0, 1000))
def test_past_the_end_it_stays_at_the_last_rate(case, after):
    """Ablations that evaluate beyond train.steps must not see a rate come back up."""
    optim, steps = case
    warmup = math.ceil(optim.warmup_fraction * steps)
    if optim.schedule != Schedule.constant and warmup < steps:
        assert learning_rate(steps + after, optim, steps) == pytest.approx(optim.min_lr, abs=1e-12 * optim.lr)
