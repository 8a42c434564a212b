"""`worldstream plan` against the server's own arithmetic and its real modules, and what the command says."""

from __future__ import annotations

import dataclasses
import json
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import UMT5Config, UMT5EncoderModel
from typer.testing import CliRunner
from worldmodel.codec import Codec, StreamingCodec
from worldmodel.conditioner import condition_chunk
from worldmodel.config import PRESETS, WorldConfig
from worldmodel.serving import ServingConfig
from worldmodel.session_size import session_bytes
from worldmodel.taehv_codec import TaehvCodec
from worldmodel.transformer import CausalWorldTransformer
from worldmodel.wan_codec import WanCodec
from worldmodel.world import Controls
from worldstream.cli import app
from worldstream.errors import InvalidInputError
from worldstream.sizing.command import make_plan
from worldstream.sizing.plan import activation_bytes, codec_activation_bytes, parse_bytes, plan_world, tell_bytes
from worldstream.sizing.worlds import WORLDS, WorldSizes

from tests.unit.worlds import TINY, picture, tiny_world

CONFIGS = Path(__file__).parents[2] / "model_repository" / "denoise"
MIB = 2**20
VARIANTS = {
    **PRESETS,
    "tiny": TINY,
    # Chunk and sink as the second published model has them, and a window that does not end with a chunk.
    "chunk of 4": PRESETS["lingbot_world_fast"].replace(chunk_latent_frames=4, sink_latent_frames=6),
    "uneven window": TINY.replace(window_latent_frames=11, sink_latent_frames=2, condition_latent_frames=3),
    "another size": PRESETS["embedded"].replace(height_px=128, width_px=208),
}


def sizes_of(config: WorldConfig, **operator: object) -> WorldSizes:
    """The same world in the client's terms, field by field."""
    both = {**vars(config), **vars(config.transformer), **vars(config.codec)}
    del both["codec"]  # its sizes count; which codec is the operator's
    names = [field.name for field in dataclasses.fields(WorldSizes)]
    return WorldSizes(**{name: both[name] for name in names if name in both}, **operator)


def on_meta(config: WorldConfig) -> tuple[CausalWorldTransformer, StreamingCodec]:
    """The real modules, without memory: 18 billion parameters count as fast as none."""
    with torch.device("meta"):
        return CausalWorldTransformer(config.transformer), StreamingCodec(config.codec)


def module_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])


def codec_on_meta(name: str, config: WorldConfig, dtype: torch.dtype) -> Codec:
    makers = {"own": lambda: StreamingCodec(config.codec), "wan": lambda: WanCodec({}), "taehv": TaehvCodec}
    with torch.device("meta"):
        codec = makers[name]()
    codec.cast(dtype)
    return codec.place(torch.device("meta"))


@pytest.mark.parametrize("name", PRESETS)
def test_the_client_knows_every_world_of_the_server(name: str) -> None:
    assert WORLDS[name] == sizes_of(PRESETS[name], is_published=name in ("lingbot_world_fast", "lingbot_world_v2"))


def test_the_client_knows_the_servers_defaults() -> None:
    served = vars(ServingConfig())
    operator = {name: value for name, value in vars(WORLDS["embedded"]).items() if name in served}
    assert len(operator) == 11
    assert operator == {name: served[name] for name in operator}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_session_takes_what_the_server_reserves(name: str, dtype: str) -> None:
    config = VARIANTS[name]
    _, codec = on_meta(config)

    plan = plan_world(name, sizes_of(config, dtype=dtype))

    assert plan.session_bytes == session_bytes(config, codec, getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_weights_take_what_the_modules_hold(name: str, dtype: str) -> None:
    transformer, codec = on_meta(VARIANTS[name])

    plan = plan_world(name, sizes_of(VARIANTS[name], dtype=dtype))

    placed = transformer.place(torch.device("meta"), getattr(torch, dtype))
    assert (plan.transformer_bytes, plan.codec_bytes) == (module_bytes(placed), module_bytes(codec))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["own", "wan", "taehv"])
def test_each_codec_takes_what_it_holds_and_what_the_server_reserves(name: str, dtype: str) -> None:
    config = PRESETS["lingbot_world_fast"]
    codec = codec_on_meta(name, config, getattr(torch, dtype))

    plan = plan_world(name, sizes_of(config, codec=name, codec_dtype=dtype))

    assert plan.codec_bytes == module_bytes(codec)
    assert plan.session_bytes == session_bytes(config, codec, torch.bfloat16)


def test_a_published_world_has_wans_vae_and_umt5_on_its_gpu() -> None:
    sizes = UMT5Config(vocab_size=256384, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64)  # umt5-xxl
    with torch.device("meta"):
        model = UMT5EncoderModel(sizes)
    model.encoder.set_input_embeddings(model.shared)  # one table under two names

    plan, elsewhere = (make_plan("lingbot_world_fast", each, None, None) for each in ([], ["text_device=cpu"]))

    assert plan.codec == "wan"
    assert plan.text_encoder_bytes == 2 * sum(each.numel() for each in model.parameters())
    assert elsewhere.text_encoder_bytes == 0
    assert make_plan("embedded", [], None, None).text_encoder_bytes == 0


@pytest.mark.parametrize("budget_bytes", [0, 8000, 1 << 30])  # no layer, one of three, all
def test_the_conditioner_takes_what_a_chunk_holds(budget_bytes: int) -> None:
    world = tiny_world()
    camera = torch.zeros(1, TINY.transformer.camera_channels, 3, TINY.latent_height, TINY.latent_width)
    with torch.inference_mode():
        held = condition_chunk(world.transformer, world.blocks, camera, budget_bytes)

    plan = plan_world("tiny", sizes_of(TINY, dtype="float32", conditioner_budget_bytes=budget_bytes))

    assert plan.conditioner_held_bytes == held.held_bytes


class PeakBytes(TorchDispatchMode):
    """The most bytes of new tensors that live at one time while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {each.untyped_storage()._cdata for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            storage = each.untyped_storage() if isinstance(each, torch.Tensor) else None
            if storage is not None and storage._cdata not in known | self._live.keys():
                self._live[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._forget, storage._cdata)
        return out

    def _forget(self, key: int) -> None:
        self._now -= self._live.pop(key, 0)


@pytest.mark.parametrize("config", [TINY, PRESETS["embedded"]], ids=lambda config: config.name)
def test_the_estimated_peak_covers_the_measured_one(config: WorldConfig) -> None:
    world = tiny_world(config, conditioner_budget_bytes=0)
    with PeakBytes() as starting:
        session = world.start(picture())
    with PeakBytes() as computing:
        world.next_chunk(session, Controls(), lambda: None)

    measured = max(starting.peak - world.session_bytes(), computing.peak)

    # Above, and not so far above that it says nothing.
    assert measured < activation_bytes(sizes_of(config, dtype="float32")) < 1.6 * measured


@pytest.mark.parametrize("name", ["own", "wan", "taehv"])
@pytest.mark.parametrize("chunk_latent_frames", [3, 4])
def test_the_estimated_peak_of_each_codec_covers_the_measured_one(name: str, chunk_latent_frames: int) -> None:
    config = PRESETS["embedded"].replace(chunk_latent_frames=chunk_latent_frames)
    codec = codec_on_meta(name, config, torch.float32)
    codec.to("meta")  # its statistics, too
    rows, columns = config.latent_height, config.latent_width
    latents = torch.empty(1, chunk_latent_frames, 16, rows, columns, device="meta")
    picture_and_black = torch.empty(1, 21, 3, config.height_px, config.width_px, device="meta")
    with torch.inference_mode(), PeakBytes() as first:
        _, memory = codec.decode(latents)
    with torch.inference_mode(), PeakBytes() as later:
        codec.decode(latents, memory)
    with torch.inference_mode(), PeakBytes() as encoding:
        codec.encode(picture_and_black)

    estimated = codec_activation_bytes(sizes_of(config, codec=name))

    assert max(first.peak, later.peak, encoding.peak) <= estimated
    assert estimated < 1.3 * max(first.peak, later.peak, encoding.peak)


def test_shared_memory_follows_the_formula_of_the_manual() -> None:
    text = (CONFIGS.parent / "preprocess" / "config.pbtxt").read_text()
    assert '"max_pixels_per_request" value { string_value: "33554432"' in text
    assert "count: 2" in text
    # By hand: 2 x (1.5 x (64 + 96) + 16) and 1.5 x (64 + 1) + 16 MiB.
    assert plan_world("embedded", WORLDS["embedded"]).shm_bytes == (512 + 113.5) * MIB


def test_a_gpu_holds_what_is_left_in_whole_sessions() -> None:
    sizes = WORLDS["lingbot_world_fast"]
    alone = plan_world("fast", sizes)
    # By hand: keys and values of 40 layers, 18 frames of 30 x 52 tokens and one spare, 5120 wide, two bytes.
    assert alone.window_bytes == 2 * 40 * (18 * 1560 + 1) * 5120 * 2

    exact = plan_world("fast", sizes, memory_bytes=alone.fixed_bytes + 3 * alone.session_bytes)
    short = plan_world("fast", sizes, memory_bytes=alone.fixed_bytes + 3 * alone.session_bytes - 1)
    too_small = plan_world("fast", sizes, memory_bytes=alone.fixed_bytes - 5)

    assert (exact.sessions, short.sessions, too_small.sessions) == (3, 2, 0)
    assert (exact.free_bytes, too_small.free_bytes) == (3 * alone.session_bytes, -5)


def test_a_configuration_file_is_read_as_the_server_reads_it(tmp_path: Path) -> None:
    text = (CONFIGS / "config.pbtxt").read_text()
    changed = {
        "configuration": ("embedded", "lingbot_world_mini"),
        "sink_latent_frames": ("", "6"),
        "dtype": ("auto", "float32"),
    }
    for key, (before, after) in changed.items():
        line = f'"{key}" value: {{ string_value: "'
        assert f'{line}{before}"' in text
        text = text.replace(f'{line}{before}"', f'{line}{after}"')
    (tmp_path / "config.pbtxt").write_text(text)
    config = PRESETS["lingbot_world_mini"].replace(sink_latent_frames=6)

    plan = make_plan(str(tmp_path / "config.pbtxt"), [], None, None)

    assert (plan.configuration, plan.dtype) == ("lingbot_world_mini", "float32")
    assert plan.session_bytes == session_bytes(config, on_meta(config)[1], torch.float32)


@pytest.mark.parametrize(
    "path", sorted([CONFIGS / "config.pbtxt", *CONFIGS.glob("configs/*.pbtxt")]), ids=lambda p: p.stem
)
def test_every_configuration_of_the_repository_can_be_planned(path: Path) -> None:
    assert make_plan(str(path), [], "1TiB", None).sessions > 0


def test_the_command_tells_people_and_programs() -> None:
    runner = CliRunner()
    arguments = ["plan", "lingbot-world-fast", "--set", "denoise.window_latent_frames=15", "--memory", "192GB"]

    told = runner.invoke(app, arguments)
    parsed = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)

    assert told.exit_code == 0
    assert "transformer" in told.stdout
    assert f"{parsed['session_bytes']:,}" in told.stdout
    wanted = parsed["sessions"] * parsed["session_bytes"]
    assert f"sessions fit; set session_budget_bytes to {wanted}" in told.stdout
    assert parsed["memory_bytes"] == 192 * 10**9
    assert parsed["window_bytes"] == 2 * 40 * (15 * 1560 + 1) * 5120 * 2
    assert parsed["fixed_bytes"] + parsed["free_bytes"] == parsed["memory_bytes"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["lingbot_world_fast"],
            "session_budget_bytes 2147483648 (the default) admits 0 sessions of 25.3 GiB; "
            "a config.pbtxt in place of the name, or --set session_budget_bytes=BYTES, says another",
        ),
        (
            [str(CONFIGS / "configs" / "lingbot_world_fast.pbtxt")],
            "session_budget_bytes 27300000000 (lingbot_world_fast.pbtxt) admits 1 session of 25.3 GiB",
        ),
        (
            ["lingbot_world_fast", "--set", "session_budget_bytes=54600000000"],
            "session_budget_bytes 54600000000 (--set) admits 2 sessions of 25.3 GiB",
        ),
    ],
)
def test_it_is_told_where_the_budget_is_from_and_how_to_set_it(arguments: list[str], line: str) -> None:
    assert CliRunner().invoke(app, ["plan", *arguments]).stdout.splitlines()[-1] == line


def test_a_gpu_that_is_too_small_is_told_by_how_much() -> None:
    told = CliRunner().invoke(app, ["plan", "lingbot_world_fast", "--memory", "24GiB"]).stdout
    plan = make_plan("lingbot_world_fast", [], "24GiB", None)
    assert (
        f"24.0 GiB: no session fits, {tell_bytes(plan.fixed_bytes + plan.session_bytes - 24 * 2**30)} are lacking"
        in told
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_world"], "config: wanted one of embedded, lingbot_world_fast, lingbot_world_v2"),
        (["embedded", "--set", "seed=1"], "--set: 'seed' decides on no bytes"),
        (["embedded", "--set", "height_px"], "--set: wanted KEY=VALUE, got 'height_px'"),
        (["embedded", "--set", "height_px=100"], "size: wanted multiples of 16 px, got 100x160"),
        (["embedded", "--set", "dtype=float16"], "dtype: wanted one of auto, float32, bfloat16, got 'float16'"),
        (
            ["embedded", "--set", "window_latent_frames=5"],
            "window_latent_frames: wanted at least sink and chunk, 3 + 3",
        ),
        (["embedded", "--set", "chunk_latent_frames=0"], "chunk_latent_frames: wanted a number of 1 or more, got '0'"),
        (
            ["embedded", "--set", "conditioner_budget_bytes=-1"],
            "conditioner_budget_bytes: wanted a number of 0 or more, got '-1'",
        ),
        (["embedded", "--memory", "much"], "--memory: wanted a size such as 80GiB or 141GB, got 'much'"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(InvalidInputError, match=r"notes\.txt is no model configuration"):
        make_plan(str(tmp_path / "notes.txt"), [], None, None)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("80GiB", 80 * 2**30),
        ("141GB", 141 * 10**9),
        ("24g", 24 * 2**30),
        ("1Gi", 2**30),
        ("512 MiB", 512 * MIB),
        ("1.5k", 1536),
        ("7 B", 7),
        ("0", 0),
        ("1073741824", 2**30),
    ],
)
def test_sizes_are_read_in_both_kinds_of_units(text: str, num_bytes: int) -> None:
    assert parse_bytes("--memory", text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "8XB", "-", "8 giga", "-5GiB", "1e400GiB", "nan"])
def test_sizes_without_a_meaning_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--memory: wanted a size"):
        parse_bytes("--memory", text)


def test_a_size_whose_unit_was_forgotten_is_refused() -> None:
    # 80 once meant 80 bytes, in which no session fits.
    with pytest.raises(InvalidInputError, match="--memory: 80 without a unit is bytes; wanted a size such as 80GiB"):
        parse_bytes("--memory", "80")
