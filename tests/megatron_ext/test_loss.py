"""Cross-entropy over a split vocabulary against torch's own in float64; megatron-core's faults beside it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from megatron_ext.model.loss import vocab_parallel_cross_entropy
from megatron_ext.runtime.fork import run_ranks

TOKENS = 7


def draw(rows, vocab_size, scale=3.0, seed=0):
    """-> logits [TOKENS, rows] of which vocab_size count, labels, gradients of the losses."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(TOKENS, rows, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, vocab_size, (TOKENS,), generator=generator)
    labels[:2] = torch.tensor([0, vocab_size - 1])  # the ends of the vocabulary
    return logits, labels, torch.randn(TOKENS, generator=generator, dtype=torch.float64)


def reference(logits, labels, weights, vocab_size, smoothing):
    """torch's loss over the real ids in float64, and its gradient; padding gets none."""
    logits = logits.detach().double().requires_grad_()
    loss = F.cross_entropy(logits[:, :vocab_size], labels, reduction="none", label_smoothing=smoothing)
    loss.backward(weights.double())
    return loss.detach(), logits.grad


def join():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.group.WORLD


def part(x, group):
    return x.chunk(group.size(), dim=-1)[group.rank()]


def ours(logits, labels, weights, vocab_size, smoothing):
    group = join()
    local = part(logits, group).clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(local, labels, vocab_size, smoothing, group)
    loss.backward(weights.to(loss.dtype))
    assert loss.dtype == torch.float32 and local.grad.dtype == logits.dtype and local.grad.shape == local.shape
    return loss.detach().numpy(), local.grad.float().numpy()


def compare(ranks, rows, vocab_size, smoothing, dtype=torch.float32, scale=3.0, atol=2e-6):
    logits, labels, weights = draw(rows, vocab_size, scale)
    logits = logits.to(dtype)
    expected, gradient = reference(logits, labels, weights, vocab_size, smoothing)
    results = run_ranks(ranks, ours, logits, labels, weights, vocab_size, smoothing)
    for loss, _ in results:
        torch.testing.assert_close(torch.from_numpy(loss).double(), expected, rtol=2e-6, atol=atol)
    found = torch.cat([torch.from_numpy(grad) for _, grad in results], dim=-1).double()
    rounding = {torch.float32: 2e-6, torch.bfloat16: 2**-8}[dtype]
    torch.testing.assert_close(found, gradient, rtol=rounding, atol=1e-6)
    assert (found[:, vocab_size:] == 0).all()
    return expected, results


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("rows, vocab_size", [(16, 16), (16, 13), (16, 9), (16, 8)],
                         ids=["whole", "padded", "padded rank", "half"])  # fmt: skip
def test_forward_and_gradient_equal_torchs(ranks, smoothing, rows, vocab_size):
    """With 9 or 8 ids in 16 rows over 4 ranks, one or two ranks hold nothing but padding."""
    compare(ranks, rows, vocab_size, smoothing)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bf16_logits_are_summed_in_fp32(ranks, smoothing):
    """Only the gradient is rounded to bf16, the loss is exact for the bf16 logits."""
    compare(ranks, 512, 500, smoothing, dtype=torch.bfloat16)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extreme_logits(ranks, smoothing):
    expected, results = compare(ranks, 16, 13, smoothing, scale=1e4, atol=2e-3)
    assert expected.max() > 1e3 and all(torch.from_numpy(grad).isfinite().all() for _, grad in results)


def test_one_certain_token_has_loss_0():
    logits = torch.full((1, 8), -1e4)
    logits[0, 3] = 1e4
    for loss, grad in run_ranks(2, ours, logits, torch.tensor([3]), torch.ones(1), 8, 0.0):
        assert loss[0] == 0 and (grad == 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_does_not_depend_on_the_padding_nor_on_what_it_holds(smoothing):
    logits, labels, weights = draw(13, 13)
    plain, _ = run_ranks(1, ours, logits.float(), labels, weights, 13, smoothing)[0]
    padded = torch.cat([logits, torch.full((TOKENS, 3), 50.0)], dim=-1).float()
    results = run_ranks(2, ours, padded, labels, weights, 13, smoothing)
    for loss, _ in results:
        torch.testing.assert_close(torch.from_numpy(loss), torch.from_numpy(plain), rtol=1e-6, atol=1e-6)
    assert (results[1][1][:, -3:] == 0).all()


def test_leading_shapes_are_kept():
    loss, grad = run_ranks(
        1, ours, torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3), 8, 0.0
    )[0]
    assert loss.shape == (2, 3) and grad.shape == (2, 3, 8)


def test_gradient_agrees_with_finite_differences():
    """Not torch's formula again: the slope of our own loss, taken with steps of 1e-2 in fp32."""
    logits, labels, _ = draw(8, 7)
    slopes, gradient = run_ranks(1, _slopes, logits.float(), labels)[0]
    assert slopes == pytest.approx(gradient, rel=1e-2, abs=1e-3)


def _slopes(logits, labels):
    step = 1e-2

    def total(x):
        return vocab_parallel_cross_entropy(x, labels, 7, 0.2, group).double().sum().item()

    group = join()
    local = logits.clone().requires_grad_()
    vocab_parallel_cross_entropy(local, labels, 7, 0.2, group).sum().backward()
    slopes = torch.zeros_like(logits)
    for place in range(logits.numel()):
        change = torch.zeros_like(logits)
        change.view(-1)[place] = step
        slopes.view(-1)[place] = (total(logits + change) - total(logits - change)) / (2 * step)
    return slopes.numpy(), local.grad.numpy()


# --- megatron-core 0.16.1 ----------------------------------------------------------------------------------------


def library(logits, labels, smoothing, tensor, gathered):
    """megatron-core's vocab_parallel_cross_entropy on this rank's part of the logits, or on all of them."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    group = join()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor)
    local = logits if gathered else part(logits, group)
    # It sums [sequence, batch, vocabulary] and writes into its input.
    return vocab_parallel_cross_entropy(local.clone()[:, None], labels[:, None], smoothing)[:, 0].numpy()


def test_the_librarys_smoothing_depends_on_the_tensor_parallel_size():
    """Its mean of log-probabilities covers the local part only, so ranks disagree and none is right."""
    logits, labels, weights = draw(16, 16)
    expected, _ = reference(logits, labels, weights, 16, 0.1 * 16 / 15)  # its rate: spread over the other 15 ids
    single = run_ranks(1, library, logits.float(), labels, 0.1, 1, False)[0]
    torch.testing.assert_close(torch.from_numpy(single).double(), expected, rtol=1e-5, atol=1e-5)
    first, second = run_ranks(2, library, logits.float(), labels, 0.1, 2, False)
    for answer in (first, second):
        assert abs(torch.from_numpy(answer).double() - expected).max() > 0.05
    assert abs(first - second).max() > 0.05


def test_the_library_is_right_without_smoothing_and_padding():
    logits, labels, weights = draw(16, 16)
    expected, _ = reference(logits, labels, weights, 16, 0.0)
    for answer in run_ranks(2, library, logits.float(), labels, 0.0, 2, False):
        torch.testing.assert_close(torch.from_numpy(answer).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_library_gives_probability_to_padding():
    logits, labels, weights = draw(16, 13)
    expected, _ = reference(logits, labels, weights, 13, 0.0)
    answer = run_ranks(1, library, logits.float(), labels, 0.0, 1, False)[0]
    assert (torch.from_numpy(answer).double() > expected + 1e-3).all()


def test_the_library_counts_gathered_logits_once_a_rank():
    """Every rank adds the same logits to the normaliser: the loss is too high by log 2 at TP2: 1.1333, not 0.4402."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    right = F.cross_entropy(logits, torch.tensor([0])).item()
    answers = run_ranks(2, library, logits, torch.tensor([0]), 0.0, 2, True)
    assert right == pytest.approx(0.4402, abs=1e-4)
    assert [answer[0] for answer in answers] == pytest.approx([1.1333] * 2, abs=1e-4)
