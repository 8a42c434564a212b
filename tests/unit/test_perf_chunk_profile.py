"""The chunk's profile: its counts are torch's, its floor is worked out by hand, it runs. No times are looked at."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import chunk_profile
import chunk_profile_operations as operations
from sessions import full_session, take
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig
from worldmodel.world import Controls

from tests.unit.worlds import TINY

NUM_STEPS = 3
# Fused attention is no product to torch's counter; its plain form is two batched ones.
AS_TORCH_NAMES = {"linear": ("addmm", "mm"), "attention": ("bmm",), "convolution": ("convolution",)}


@pytest.fixture(scope="module")
def counted_by_torch():
    """Operations of one chunk by the name that torch has for them."""
    world = load_world(TINY, ServingConfig(), Path(), Instance("CPU", 0))
    session = full_session(world)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        take(world, session, Controls(num_steps=NUM_STEPS), commit=False)
    return {str(name).removeprefix("aten."): flops for name, flops in counter.get_flop_counts()["Global"].items()}


def all_operations():
    visible = TINY.window_latent_frames * TINY.tokens_per_frame
    return [each for stage in operations.chunk_operations(TINY, NUM_STEPS, visible).values() for each in stage]


@pytest.mark.parametrize("kind", operations.KINDS)
def test_operations_of_each_kind_are_those_that_torch_counts(counted_by_torch, kind):
    counted = sum(counted_by_torch.get(name, 0) for name in AS_TORCH_NAMES[kind])
    assert operations.total_flops(operations.of_kind(all_operations(), kind)) == counted > 0


def test_torch_counts_nothing_besides(counted_by_torch):
    assert operations.total_flops(all_operations()) == sum(counted_by_torch.values())


def test_bytes_are_operands_and_results_once():
    # 2 rows of 3 channels, weights 3 x 5, results 2 x 5: 6 + 15 + 10 numbers.
    assert operations.linear(2, 3, 5).num_bytes == 4 * 31
    # 2 heads of 4 channels: 3 queries in, 3 results out, 7 keys and 7 values.
    assert operations.attention(2, 3, 7, 4).num_bytes == 4 * 2 * 4 * (3 + 3 + 7 + 7)
    # 2 frames of 6 cells, 3 channels in and 5 out, a kernel of 3 x 3.
    assert operations.convolution(2, 3, 5, 6, 3).num_bytes == 4 * (2 * 6 * 3 + 2 * 6 * 5 + 3 * 5 * 9)


def test_a_floor_takes_the_lower_ceiling_of_each_operation():
    heavy = operations.Operation("linear", flops=4_000_000_000, num_bytes=1_000_000)  # 40 ms at 100 GFLOP/s
    wide = operations.Operation("linear", flops=1_000_000, num_bytes=10_000_000, times=2)  # 1 ms at 10 GB/s, twice
    assert operations.floor_ms([heavy, wide], gflops=100, gb_per_s=10) == pytest.approx(42)


def test_a_row_says_how_far_from_the_ceilings_it_is():
    work = [operations.Operation("linear", flops=4_000_000_000, num_bytes=100_000_000)]
    row = chunk_profile.against_floor(80.0, work, gflops=100, gb_per_s=10)
    assert (row["gflop_per_s"], row["of_matmul_ceiling"]) == (50, 0.5)
    assert (row["gb_per_s"], row["of_memory_ceiling"]) == (1.25, 0.125)
    assert (row["flop_per_byte"], row["floor_ms"], row["over_floor"]) == (40, 40, 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "linear"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::addcmul_", chunk_profile.OTHERS),
    ],
)
def test_operations_of_torch_are_sorted_by_kind(name, kind):
    assert chunk_profile.kind_of(name) == kind


def test_a_quick_run_ends_with_a_document(monkeypatch, capsys):
    monkeypatch.setitem(chunk_profile.CONFIGURATIONS, "embedded", TINY)
    assert chunk_profile.main(["--quick", "--configurations", "embedded"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["bench"], document["wanted"]) == ("chunk_profile", [])
    (result,) = document["results"]["configurations"].values()
    assert set(result["stages"]) == set(operations.STAGES)
    assert set(result["kinds"]) == {*operations.KINDS, chunk_profile.OTHERS, chunk_profile.BETWEEN}
    assert all(result["kinds"][kind]["ms"] > 0 for kind in operations.KINDS)
    assert document["results"]["threads"] == torch.get_num_threads()
