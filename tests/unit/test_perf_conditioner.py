"""The conditioner's benchmark: what it counts, and that it runs. Its times are not looked at here."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from worldmodel.config import LINGBOT_WORLD_FAST, LINGBOT_WORLD_MINI
from worldmodel.transformer import Block

from tests.unit.worlds import TINY

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

import conditioner

VISIBLE = 6 * TINY.tokens_per_frame


def counted_by_torch(has_held_scale):
    """Operations of one block's pass, as torch's own counter has them."""
    model, tokens = TINY.transformer, TINY.chunk_latent_frames * TINY.tokens_per_frame
    tensors = {"x": torch.zeros(1, tokens, model.dim), "camera": torch.zeros(1, tokens, model.dim)}
    kept = torch.zeros(1, model.num_heads, VISIBLE, model.head_dim)
    text = torch.zeros(1, model.num_heads, model.text_len, model.head_dim)
    block = Block(model)
    block.bind(time_modulation=torch.zeros(1, 1, 6, model.dim), text_keys=text, text_values=text)
    block.bind(kv_keys=kept, kv_values=kept.clone(), kv_index=torch.arange(tokens))
    if has_held_scale:
        block.bind(camera_scale=tensors["camera"], camera_shift=tensors["camera"])
    else:
        block.bind(camera_tokens=tensors["camera"])
    # The counter knows no fused attention of the CPU: as plain products it counts the same operations.
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        block(tensors["x"])
    return counter.get_total_flops()


def test_operations_of_a_block_are_those_that_torch_counts():
    assert conditioner.block_operations(TINY, VISIBLE).total == counted_by_torch(has_held_scale=False)


def test_the_camera_operations_are_those_that_a_held_scale_saves():
    saved = counted_by_torch(has_held_scale=False) - counted_by_torch(has_held_scale=True)
    assert conditioner.block_operations(TINY, VISIBLE).camera == saved


@pytest.mark.parametrize(("window", "percent"), [(3, 18.4), (18, 12.0), (45, 7.4)])
def test_the_published_model_would_save_what_was_worked_out_by_hand(window, percent):
    # In units of L * dim^2 multiply-adds, with 1560 tokens a frame, dim 5120, ffn_dim 2.7 dim, 512 prompt tokens:
    # self 4 + 2 * 1560 * window / 5120, cross 2 + 0.2, feed-forward 5.4, camera 4; four of five cameras are saved.
    config = conditioner.with_window(LINGBOT_WORLD_FAST, window)
    assert 100 * conditioner.predicted_saving(config) == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize("window", conditioner.WINDOWS)
def test_the_small_world_keeps_the_published_proportions(window):
    small, large = (conditioner.with_window(each, window) for each in (LINGBOT_WORLD_MINI, LINGBOT_WORLD_FAST))
    assert conditioner.predicted_saving(small) == pytest.approx(conditioner.predicted_saving(large), abs=1e-3)


def test_a_window_of_one_chunk_has_no_sink():
    config = conditioner.with_window(LINGBOT_WORLD_MINI, 3)
    assert (config.window_latent_frames, config.sink_latent_frames) == (3, 0)


def test_arms_that_differ_once_are_counted_and_change_places():
    order = []

    def take(name, outputs):
        def once():
            order.append(name)
            return conditioner.Take(1.0, 2.0, outputs.pop(0))

        return once

    arms = {"on": take("on", [b"a", b"b", b"c"]), "off": take("off", [b"a", b"x", b"c"])}
    takes, num_different = conditioner.take_turns(arms, num_rounds=2)
    assert num_different == 1
    assert order == ["off", "on", "on", "off", "off", "on"]
    assert [each.denoise_ms for each in takes["on"]] == [1.0, 1.0]  # the first round does not count


def test_the_benchmark_ends_with_a_document_of_equal_bytes(capsys):
    arguments = ["--quick", "--no-server", "--rounds", "2", "--windows", "3", "18", "--dtypes", "float32", "bfloat16"]
    assert conditioner.main(arguments) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    entries = document["results"]["here"]
    assert list(entries) == [f"{dtype}, window {window}" for dtype in ("float32", "bfloat16") for window in (3, 18)]
    assert [entry["rounds_with_other_bytes"] for entry in entries.values()] == [0] * 4
    # Two layers, scale and shift, 3 latent frames of 2 x 3 cells of 64 numbers.
    assert entries["float32, window 18"]["held_bytes"] == 2 * 2 * 18 * 64 * 4
    assert [wanted["bar"] for wanted in document["wanted"]] == [">= 10", ">= 10"]
    assert [(check["bar"], check["holds"]) for check in document["checks"]] == [("<= 0", True)]
