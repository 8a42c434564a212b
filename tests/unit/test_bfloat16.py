"""Where bfloat16 rounds, and what a GPU's fast kernels need; on the CPU, whose bfloat16 rounds the same way."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from worldmodel.loading import settle_cuda
from worldmodel.world import Controls, World

from tests.unit.worlds import picture, tiny_world

BF16 = torch.bfloat16
MOVE = Controls(actions=("w", "l", "w"))


def bf16_world(**changes):
    wide = tiny_world(**changes)
    return World(wide.config, wide.transformer, wide.codec, wide.device, BF16, wide.conditioner_budget_bytes)


def stream(world, num_chunks, controls=MOVE):
    session, frames = world.start(picture(), "day", 3), []
    for _ in range(num_chunks):
        chunk = world.next_chunk(session, controls, lambda: None)
        session.commit(chunk.staged)
        frames.append(chunk.frames.numpy().astype(int))
    return np.concatenate(frames)


def rounded(values):
    """float32 -> the nearest bfloat16, ties to even, by its bits: nothing of torch."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_the_conditioner_rounds_one_plus_scale_product_and_sum():
    block = bf16_world().blocks[1]
    rng = np.random.default_rng(0)
    x, scale, shift = (rounded(rng.standard_normal((1, 18, 48), dtype=np.float32)) for _ in range(3))
    block.bind(camera_scale=torch.from_numpy(scale).to(BF16), camera_shift=torch.from_numpy(shift).to(BF16))
    got = block._steer(torch.from_numpy(x).to(BF16)).float().numpy()
    wanted = rounded(rounded(rounded(1 + scale) * x) + shift)
    assert np.array_equal(got, wanted)
    assert not np.array_equal(got, rounded((1 + scale) * x + shift))  # rounding once, as a fused kernel does


def test_a_gated_residual_rounds_once():
    block = bf16_world().blocks[0]
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((1, 18, 48), dtype=np.float32)).to(BF16)
    modulation = torch.zeros(1, 1, 6, 48)
    modulation[..., 5, :] = torch.from_numpy(rng.standard_normal(48, dtype=np.float32))
    block.modulation.data.zero_()
    block.bind(time_modulation=modulation)  # the first gate is 0; no camera, no prompt: the feed-forward alone
    change = block.ffn(block.norm2(x)).float().numpy()
    wanted = rounded(x.float().numpy() + change * modulation[0, 0, 5].numpy())
    assert np.array_equal(block(x).float().detach().numpy(), wanted)


def test_what_wan_computes_in_float32_stays_float32():
    wide = {name for name, value in bf16_world().transformer.named_parameters() if value.dtype == torch.float32}
    assert wide == {
        *(f"time_embedding.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")),
        "time_projection.1.weight",
        "time_projection.1.bias",
        "head.modulation",
        *(f"blocks.{layer}.modulation" for layer in range(3)),
    }


def test_a_bfloat16_world_stays_near_the_float32_one():
    near = np.abs(stream(bf16_world(), 5) - stream(tiny_world(), 5))
    other_seed = np.abs(stream(bf16_world(seed=1), 5) - stream(tiny_world(), 5))
    # Of 255, after three layers, four steps and four chunks of history (measured: 0.23).
    assert near.mean() < 0.5
    assert other_seed.mean() > 10 * near.mean()


@pytest.mark.parametrize("budget", [0, 5000])
def test_bfloat16_frames_are_bit_equal_without_conditioner_reuse(budget):
    assert np.array_equal(stream(bf16_world(), 4), stream(bf16_world(conditioner_budget_bytes=budget), 4))


def test_attention_can_take_a_flash_kernel(monkeypatch):
    """No mask, 16-bit, neighbouring channels side by side: what those kernels ask for."""
    seen, attention = [], functional.scaled_dot_product_attention

    def look(q, k, v, **options):
        seen.append((q, k, v, options))
        return attention(q, k, v, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", look)
    stream(bf16_world(), 1)
    assert len(seen) == 2 * 3 * 5  # self and cross, three layers, four steps and the context pass
    assert [options for *_, options in seen] == [{"attn_mask": None}] * len(seen)
    for tensors in seen:
        assert all(tensor.dtype == BF16 and tensor.stride(-1) == 1 for tensor in tensors[:3])


@pytest.fixture
def torch_flags():
    """They are the process's own: put back what was there."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    kept = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic = kept


@pytest.mark.parametrize(("dtype", "is_tf32"), [(torch.float32, False), (BF16, True)])
def test_tf32_is_for_the_codec_of_a_bfloat16_world_alone(monkeypatch, torch_flags, dtype, is_tf32):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    settle_cuda(torch.device("cuda", 1), dtype)
    assert chosen == [torch.device("cuda", 1)]
    assert torch.backends.cudnn.allow_tf32 is is_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.deterministic
