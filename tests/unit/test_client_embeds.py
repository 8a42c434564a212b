"""Prompts as vectors: what the client sends, its files, and the commands `embed` and `generate --prompt-embeds`."""

import json
import math
import shutil
import sys

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from PIL import Image
from typer.testing import CliRunner
from worldmodel import text_encoder
from worldstream import InvalidInputError
from worldstream.cli import app
from worldstream.embed import RANGES, embed
from worldstream.embeds import read_embeds, write_embeds

from tests.unit.text_encoders import tiny_encoder, tiny_tokenizer, write_text_encoder

RUNNER = CliRunner()
PIXELS = np.zeros((2, 3, 3), np.uint8)
ROWS = np.array([[0.5, -1.25, 3], [1e-8, 2, -0.75]], np.float32)


def prompts_of(server):
    return [seen.inputs.get("prompt_embeds") for seen in server.seen if seen.model == "denoise"]


def test_a_sessions_vectors_go_out_with_its_start_and_others_switch(server, client):
    with client.session(PIXELS, prompt_embeds=ROWS) as session:
        list(session.generate())
        list(session.generate())
        list(session.generate(prompt_embeds=ROWS[:1].astype(np.float64), recache=True))
    values = ROWS.reshape(-1).tolist()
    assert prompts_of(server) == [values, None, values[:3], None]
    assert server.seen[0].shapes["prompt_embeds"] == [2, 3]
    assert "prompt" not in server.seen[0].inputs
    assert server.seen[2].parameters["recache"] is True


def test_the_first_requests_own_prompt_comes_before_the_sessions(server, client):
    with client.session(PIXELS, prompt="day") as session:
        list(session.generate(prompt_embeds=ROWS))
    with client.session(PIXELS, prompt_embeds=ROWS) as session:
        list(session.generate(prompt="night"))
    assert prompts_of(server) == [ROWS.reshape(-1).tolist(), None, None, None]
    assert [seen.inputs.get("prompt") for seen in server.seen] == [None, None, [b"night"], None]


def test_one_clip_takes_vectors_too(server, client):
    list(client.generate(PIXELS, prompt_embeds=ROWS.tolist()))
    assert prompts_of(server) == [ROWS.reshape(-1).tolist()]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prompt": "day", "prompt_embeds": ROWS}, "prompt, prompt_embeds: a request takes one of them, both came"),
        ({"prompt_embeds": ROWS[None]}, r"prompt_embeds: wanted \[n, d\], a row a token, got \[1, 2, 3\]"),
        ({"prompt_embeds": ROWS[0]}, r"prompt_embeds: wanted \[n, d\], a row a token, got \[3\]"),
        ({"prompt_embeds": ROWS * np.nan}, "prompt_embeds: wanted finite numbers"),
        ({"prompt_embeds": "day"}, "prompt_embeds: wanted an array of numbers, got 'day'$"),
    ],
)
def test_vectors_that_cannot_be_meant_are_not_sent(server, client, asked, message):
    with client.session(PIXELS, session_id="a") as session, pytest.raises(InvalidInputError, match=message):
        session.generate(**asked)
    with pytest.raises(InvalidInputError, match=message):
        client.session(PIXELS, **asked)
    assert server.seen == []


# Files


def test_written_files_are_what_numpy_and_safetensors_read(tmp_path):
    write_embeds(tmp_path / "a.npy", ROWS)
    write_embeds(tmp_path / "a.safetensors", ROWS)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), ROWS)
    (tensors,) = safetensors.numpy.load_file(tmp_path / "a.safetensors").items()
    assert tensors[0] == "prompt_embeds"
    np.testing.assert_array_equal(tensors[1], ROWS)
    for name in ("a.npy", "a.safetensors"):
        np.testing.assert_array_equal(read_embeds(tmp_path / name), ROWS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_files_of_any_float_are_read(tmp_path, dtype):
    tensor = torch.from_numpy(ROWS).to(dtype)
    safetensors.torch.save_file({"mine": tensor}, tmp_path / "a.safetensors", metadata={"by": "me"})
    np.testing.assert_array_equal(read_embeds(tmp_path / "a.safetensors"), tensor.float().numpy())


def test_of_several_tensors_the_named_one_is_read(tmp_path):
    safetensors.numpy.save_file({"a": ROWS[:1], "prompt_embeds": ROWS, "z": ROWS[:1]}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(read_embeds(tmp_path / "a.safetensors"), ROWS)


def test_a_file_that_holds_no_vectors_is_refused_by_name(tmp_path):
    safetensors.numpy.save_file({"a": ROWS, "b": ROWS}, tmp_path / "two.safetensors")
    safetensors.numpy.save_file({"a": np.ones((2, 3), np.int32)}, tmp_path / "whole.safetensors")
    write_embeds(tmp_path / "cut.safetensors", ROWS)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-3])
    (tmp_path / "text.npy").write_bytes(b"a prompt")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "archive.npy").write_bytes(b"PK\x03\x04")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    for file in sorted(tmp_path.iterdir()):
        with pytest.raises(InvalidInputError, match=f"prompt_embeds: cannot read {file.name}: it is damaged, or"):
            read_embeds(file)
    with pytest.raises(InvalidInputError, match=r"prompt_embeds: cannot read none\.npy: No such file"):
        read_embeds(tmp_path / "none.npy")
    with pytest.raises(InvalidInputError, match=r"ends in .npy or .safetensors, got a.txt"):
        read_embeds(tmp_path / "a.txt")


# Commands


def test_generate_sends_a_file_of_vectors(server, tmp_path):
    Image.new("RGB", (48, 32)).save(tmp_path / "start.png")
    write_embeds(tmp_path / "dusk.npy", ROWS)
    arguments = ("-o", str(tmp_path / "film.mp4"), "--url", server.url, "--prompt-embeds", str(tmp_path / "dusk.npy"))
    result = RUNNER.invoke(app, ["generate", str(tmp_path / "start.png"), "--chunks", "1", *arguments])
    assert result.exit_code == 0, result.output
    assert prompts_of(server)[0] == ROWS.reshape(-1).tolist()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    pytest.importorskip("transformers")
    return write_text_encoder(tmp_path_factory.mktemp("checkpoint"), tiny_encoder(), tiny_tokenizer())


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_embed_writes_the_last_hidden_states_of_a_prompt(checkpoint, tmp_path, suffix):
    file = tmp_path / f"dusk{suffix}"
    result = RUNNER.invoke(app, ["embed", " a  street ", "--checkpoint", str(checkpoint), "-o", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{file}: 3 tokens of 16 numbers\n"
    tokens = tiny_tokenizer()("a street", return_tensors="pt")
    with torch.inference_mode():
        wanted = tiny_encoder()(**tokens).last_hidden_state[0].numpy()
    np.testing.assert_allclose(read_embeds(file), wanted, atol=1e-6)


def test_embed_cuts_at_the_models_text_length(checkpoint):
    assert embed("a street in winter", checkpoint).shape == (5, 16)
    assert embed("a street in winter", checkpoint, max_tokens=3).shape == (3, 16)


BROKEN = {
    # transformers put random numbers in their place, and the command wrote vectors of no meaning.
    "missing": (lambda tensors: tensors.pop("encoder.final_layer_norm.weight"), {}, r"1 missing keys \(encoder\.final"),
    "fewer layers": (lambda tensors: None, {"num_layers": 1}, r"10 unexpected keys \(encoder\.block\.1\."),
    "shape": (lambda tensors: tensors.update({"shared.weight": torch.zeros(48, 7)}), {}, "text_encoder cannot be used"),
    "not finite": (
        lambda tensors: tensors["encoder.final_layer_norm.weight"].fill_(torch.nan),
        {},
        "prompt_embeds: wanted finite numbers",
    ),
    "another model": (lambda tensors: None, {"model_type": "t5"}, "wanted model_type umt5, got 't5'"),
    "no distance": (
        lambda tensors: None,
        {"relative_attention_max_distance": 0},
        r"^checkpoint: text_encoder/config\.json: relative_attention_max_distance: wanted a whole number .*, got 0$",
    ),
    # This once made modules until the memory was full.
    "endless layers": (
        lambda tensors: None,
        {"num_layers": 10**9},
        r"^checkpoint: text_encoder/config\.json: num_layers: wanted a whole number from 1 to 1000, got 1000000000$",
    ),
    "half a head": (
        lambda tensors: None,
        {"num_heads": 2.5},
        "num_heads: wanted a whole number from 1 to 1000, got 2.5",
    ),
    "true layers": (lambda tensors: None, {"num_layers": True}, "num_layers: wanted a whole number .*, got True"),
    "no number": (
        lambda tensors: None,
        {"layer_norm_epsilon": math.nan},
        "layer_norm_epsilon: wanted a number from 1e-12 to 0.1, got nan",
    ),
}


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", BROKEN)
def test_embed_refuses_an_encoder_that_is_not_whole(tmp_path, checkpoint, name):
    change, said, wanted = BROKEN[name]
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    tensors = safetensors.torch.load_file(folder / "text_encoder/model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "text_encoder/model.safetensors", {"format": "pt"})
    change_json(folder / "text_encoder/config.json", **said)
    with pytest.raises(InvalidInputError, match=wanted) as refused:
        embed("a day", folder)
    assert str(folder) not in str(refused.value)


def test_embed_lets_through_what_the_server_does():
    assert {name: (each.least, each.most) for name, each in text_encoder.RANGES.items()} == dict(RANGES)
    assert {name for name, each in text_encoder.RANGES.items() if not each.is_whole} == {"layer_norm_epsilon"}


def test_embed_neither_unpickles_nor_asks_whether_to_run_a_checkpoints_code(tmp_path, checkpoint, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    (folder / "text_encoder/model.safetensors").unlink()
    torch.save(tiny_encoder().state_dict(), folder / "text_encoder/pytorch_model.bin")
    with pytest.raises(InvalidInputError, match="text_encoder cannot be used"):
        embed("a day", folder)
    change_json(
        folder / "tokenizer/tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.T", None]}, tokenizer_class="T"
    )
    with pytest.raises(InvalidInputError, match="tokenizer cannot be used"):
        embed("a day", folder)
    assert "Do you wish to run" not in capsys.readouterr().out


def test_embed_says_in_one_line_what_is_wrong(checkpoint, tmp_path, monkeypatch):
    def error(*arguments):
        result = RUNNER.invoke(app, ["embed", "day", *map(str, arguments)])
        assert result.exit_code == 1
        return result.stderr

    output = ("-o", tmp_path / "a.npy")
    assert "wanted a name that ends in .npy or" in error("--checkpoint", checkpoint, "-o", tmp_path / "a.bin")
    assert "wanted a folder that has tokenizer/tokenizer.json" in error("--checkpoint", tmp_path, *output)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")
    assert "tokenizer cannot be used" in error("--checkpoint", tmp_path, *output)
    assert "torch cannot compute on 'nothing'" in error("--checkpoint", checkpoint, "--device", "nothing", *output)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "wanted the Python package transformers" in error("--checkpoint", checkpoint, *output)
    assert not (tmp_path / "a.npy").exists()
