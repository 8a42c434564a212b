"""The transformer against other people's code and against a slow, obvious reference."""

import itertools
import math
import os
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file
from worldmodel import golden
from worldmodel.config import EMBEDDED, LINGBOT_WORLD_FAST
from worldmodel.layers import rotary_table, seed_parameters
from worldmodel.transformer import CausalWorldTransformer

from tests.unit.worlds import TINY, tiny_world

# Vectors made by other implementations. They are not part of the repository: the test runs where they are laid beside
# it.
VECTORS = Path(os.environ.get("WORLDSTREAM_VECTORS", Path(__file__).parents[3] / "shared" / "data"))

# Our module -> diffusers' name for it. Their norm2 is the cross-attention norm.
DIFFUSERS_NAMES = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "self_attn.": "attn1.",
    "cross_attn.": "attn2.",
    ".q.": ".to_q.",
    ".k.": ".to_k.",
    ".v.": ".to_v.",
    ".o.": ".to_out.0.",
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
    ".modulation": ".scale_shift_table",
}


@pytest.mark.parametrize("folder", ["lingbot_golden", "lingbot_stream_golden"])
def test_the_vectors_of_other_implementations_are_reproduced(folder):
    if not (VECTORS / folder).is_dir():
        pytest.skip(f"the vectors {folder} are not on this machine")
    results = golden.check(VECTORS / folder)
    assert len(results) >= 13
    assert [(result.name, result.error) for result in results if not result.holds] == []


def test_a_wrong_vector_is_told_and_fails_the_command(tmp_path, capsys):
    folder = VECTORS / "lingbot_stream_golden"
    if not folder.is_dir():
        pytest.skip("the vectors lingbot_stream_golden are not on this machine")
    for name in ("config.json", "weights.safetensors"):
        (tmp_path / name).symlink_to(folder / name)
    vectors = load_file(folder / "vectors.safetensors")
    vectors["x0"][2] += 0.01
    save_file(vectors, tmp_path / "vectors.safetensors")
    assert golden.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines() if "BEYOND" in line] == ["x0[chunk 2]"]
    assert "30 vectors, 1 beyond tolerance" in out


def test_a_folder_that_is_none_is_a_misuse(tmp_path, capsys):
    assert golden.main([str(tmp_path / "nowhere")]) == 2
    assert "usage" in capsys.readouterr().err


def diffusers_name(name):
    for ours, theirs in DIFFUSERS_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def test_blocks_without_camera_equal_diffusers_wan():
    sizes = EMBEDDED.transformer
    torch.manual_seed(0)
    theirs = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=sizes.num_heads,
        attention_head_dim=sizes.head_dim,
        in_channels=sizes.in_channels,
        out_channels=sizes.latent_channels,
        text_dim=sizes.text_dim,
        freq_dim=sizes.freq_dim,
        ffn_dim=sizes.ffn_dim,
        num_layers=sizes.num_layers,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        eps=sizes.eps,
        rope_max_seq_len=64,
    ).eval()
    ours = CausalWorldTransformer(sizes).eval()
    seed_parameters(ours, 3)
    weights = {diffusers_name(k): v for k, v in ours.state_dict().items() if "cam" not in k and "c2ws" not in k}
    theirs.load_state_dict(weights, strict=True)
    generator = torch.Generator().manual_seed(1)
    latent, condition = (torch.randn(1, c, 3, 12, 20, generator=generator) for c in (16, 20))
    text = torch.randn(1, sizes.text_len, sizes.text_dim, generator=generator)
    timestep = torch.tensor([821.0])
    with torch.inference_mode():
        wanted = theirs(torch.cat([latent, condition], 1), timestep, text, return_dict=False)[0]
        time, modulation = ours.embed_time(timestep)
        cos, sin = rotary_table(0, 3, 6, 10, sizes.head_dim, sizes.rope_theta)
        context = ours.embed_text(text)
        for block in ours.blocks:
            keys, values = block.cross_attn.keys_values(context)
            block.bind(time_modulation=modulation, rotary_cos=cos, rotary_sin=sin, text_keys=keys, text_values=values)
        got = ours(latent, condition, time)
    torch.testing.assert_close(got, wanted, atol=2e-4, rtol=0)
    assert wanted.std() > 0.1


def visible_frames(chunk, window, sink):
    """Which latent frames chunk `chunk` of three sees, by the rule in words: sink, then the latest, own chunk
    included."""
    past = []
    for index in range(chunk + 1):
        past += range(3 * index, 3 * index + 3)
        if len(past) > window:
            past = past[:sink] + past[len(past) - (window - sink) :]
    return past


def block_causal_mask(num_chunks, window, sink, tokens):
    mask = torch.zeros(3 * num_chunks, 3 * num_chunks, dtype=torch.bool)
    for chunk in range(num_chunks):
        for frame in visible_frames(chunk, window, sink):
            mask[3 * chunk : 3 * chunk + 3, frame] = True
    return mask.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)


@pytest.mark.parametrize(("window", "sink"), [(18, 3), (9, 3), (10, 2), (7, 4), (6, 0)])
def test_chunk_by_chunk_with_the_cache_equals_one_pass_with_a_block_causal_mask(window, sink):
    config = TINY.replace(window_latent_frames=window, sink_latent_frames=sink)
    world, num_chunks = tiny_world(config), 6
    generator = torch.Generator().manual_seed(2)
    latent, condition = (torch.randn(1, c, 3 * num_chunks, 4, 6, generator=generator) for c in (16, 20))
    camera = torch.randn(1, 384, 3 * num_chunks, 4, 6, generator=generator)
    head_dim, theta = config.transformer.head_dim, config.transformer.rope_theta
    with torch.inference_mode():
        time, modulation = world.transformer.embed_time(torch.zeros(1))
        tokens = world.transformer.embed_camera(camera)
        cos, sin = rotary_table(0, 3 * num_chunks, 2, 3, head_dim, theta)
        for block in world.blocks:
            mask = block_causal_mask(num_chunks, window, sink, 6)
            block.bind(time_modulation=modulation, camera_tokens=tokens, rotary_cos=cos, rotary_sin=sin)
            block.bind(attention_mask=mask)
        whole = world.transformer(latent, condition, time)
        world.unbind_chunk()
        cache, parts = world.new_cache(world.config), []
        for chunk in range(num_chunks):
            frames = slice(3 * chunk, 3 * chunk + 3)
            placement = cache.stage(3 * chunk, 3)
            cos, sin = rotary_table(3 * chunk, 3, 2, 3, head_dim, theta)
            for layer, block in enumerate(world.blocks):
                keys, values = cache.visible(layer, placement)
                block.bind(kv_keys=keys, kv_values=values, kv_index=cache.token_index(placement))
                block.bind(time_modulation=modulation, rotary_cos=cos, rotary_sin=sin)
                block.bind(camera_tokens=tokens[:, 18 * chunk : 18 * chunk + 18])
            parts.append(world.transformer(latent[:, :, frames], condition[:, :, frames], time))
            cache.commit(placement)
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=1e-5, rtol=1e-5)


def test_the_rotary_position_goes_on_past_the_published_table():
    cos, sin = rotary_table(1_000_000, 1, 1, 1, 64, 10000.0)
    assert cos[0, 0].item() == pytest.approx(0.9367521, abs=1e-6)  # cos(1e6)
    assert sin[0, 0].item() == pytest.approx(-0.3499935, abs=1e-6)


def test_each_token_turns_by_its_frame_then_its_row_then_its_column():
    cos, sin = rotary_table(5, 2, 3, 4, 16, 10000.0)
    rates = [10000.0 ** (-2 * pair / size) for size in (8, 4, 4) for pair in range(size // 2)]
    for token, (frame, row, column) in enumerate(itertools.product((5, 6), range(3), range(4))):
        angles = [position * rate for position, rate in zip([frame] * 4 + [row] * 2 + [column] * 2, rates, strict=True)]
        assert cos[token].tolist() == pytest.approx([math.cos(angle) for angle in angles], abs=1e-6)
        assert sin[token].tolist() == pytest.approx([math.sin(angle) for angle in angles], abs=1e-6)


@pytest.mark.gpu
def test_a_gpu_has_the_host_s_rotary_table_bit_for_bit():
    on_host, on_gpu = (rotary_table(1_000, 3, 30, 52, 128, 10000.0, torch.device(name)) for name in ("cpu", "cuda"))
    assert all(torch.equal(theirs.cpu(), ours) for theirs, ours in zip(on_gpu, on_host, strict=True))


def test_the_published_configuration_has_its_published_size():
    with torch.device("meta"):
        blocks = CausalWorldTransformer(LINGBOT_WORLD_FAST.transformer).blocks
    total = sum(parameter.numel() for parameter in blocks.parameters())
    camera = sum(parameter.numel() for name, parameter in blocks.named_parameters() if ".cam_" in name)
    assert camera == 40 * 4 * (5120 * 5120 + 5120)  # 4.19 B weights and their biases
    assert total / 1e9 == pytest.approx(18.25, abs=0.01)


def test_the_embedded_configuration_is_small():
    with torch.device("meta"):
        transformer = CausalWorldTransformer(EMBEDDED.transformer)
    assert sum(parameter.numel() for parameter in transformer.parameters()) < 5_000_000
