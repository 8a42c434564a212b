"""A published checkpoint with a text encoder, on the real server: words give the frames of the vectors made of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from worldmodel.codec import StreamingCodec
from worldmodel.config import LINGBOT_WORLD_FAST
from worldmodel.layers import seed_parameters
from worldmodel.transformer import CausalWorldTransformer
from worldstream.embed import embed

from tests.conftest import running_server
from tests.server.raw import Array, ask, join, make_request, picture, settled_metrics
from tests.unit.text_encoders import write_text_encoder
from tests.unit.worlds import TINY

pytestmark = pytest.mark.server

SIZES = TINY.transformer
TEXT = "a street &amp; rain in winter"  # longer than the tiny model reads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("transformers")
    made = write_text_encoder(tmp_path / "checkpoint")
    modules = {"transformer/model": CausalWorldTransformer(SIZES), "codec": StreamingCodec(LINGBOT_WORLD_FAST.codec)}
    (made / "transformer").mkdir()
    for name, module in modules.items():
        seed_parameters(module, 0)
        save_file({key: value.contiguous() for key, value in module.state_dict().items()}, made / f"{name}.safetensors")
    names = ("dim", "ffn_dim", "num_heads", "num_layers", "freq_dim", "text_dim", "text_len")
    (made / "transformer" / "config.json").write_text(json.dumps({name: getattr(SIZES, name) for name in names}))
    return made


def settings(folder: Path) -> dict[str, str]:
    values = {"configuration": "lingbot_world_fast", "checkpoint": str(folder), "height_px": "32", "width_px": "48"}
    return {f"denoise.{name}": value for name, value in values.items()}


def session(server: Any, name: str, first: dict[str, Any], second: dict[str, Any]) -> Array:
    """The frames of a start by one prompt, and of a switch to another."""
    start = make_request("denoise", {"pixels": picture(32, 48), **first}, sequence_id=name, sequence_start=True)
    switch = make_request("denoise", {**second, "num_chunks": 1}, sequence_id=name, sequence_end=True)
    return np.concatenate([join(ask(server.grpc, request)) for request in (start, switch)])


def test_words_are_read_by_the_checkpoints_text_encoder(start_server: Any, folder: Path) -> None:
    server = start_server(overrides=settings(folder))
    by_text = session(server, "text", {"prompt": TEXT}, {"prompt": "night"})
    again = session(server, "again", {"prompt": TEXT}, {"prompt": "night"})
    vectors = [{"prompt_embeds": embed(text, folder, SIZES.text_len)} for text in (TEXT, "night")]
    by_vectors = session(server, "vectors", *vectors)
    np.testing.assert_array_equal(again, by_text)
    # Another process, with more threads, may sum in another order; then rounding.
    assert np.abs(by_vectors.astype(int) - by_text).max() <= 1
    assert np.abs(session(server, "others", *reversed(vectors)).astype(int) - by_text).max() > 1
    metrics = settled_metrics(server.metrics)
    assert (metrics["prompts_encoded_total"], metrics["prompt_cache_hits_total"]) == (2, 2)
    assert "text encoder: 0.0 M parameters on cpu as torch.float32" in server.log()


def test_a_damaged_text_encoder_makes_the_server_say_why_it_is_not_ready(folder: Path, tmp_path: Path) -> None:
    (folder / "text_encoder" / "config.json").unlink()
    log = tmp_path / "server.log"
    with pytest.raises(RuntimeError, match="the server did not start"), running_server(log, overrides=settings(folder)):
        pytest.fail("it started")
    said = log.read_text(encoding="utf-8")
    assert "failed to load 'denoise' version 1" in said
    assert "text_encoder: config.json: no such file" in said
