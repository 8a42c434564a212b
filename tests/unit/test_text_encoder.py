"""UMT5 in the published layout, written by transformers: vectors as diffusers' Wan pipeline has them, errors, choice.

Also the cache of prompts, and the client's own encoder.
"""

import importlib
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from worldmodel.checkpoint_files import CheckpointError
from worldmodel.loading import Instance, load_world
from worldmodel.prompt import HashedWords, NoTextEncoder
from worldmodel.prompt_cache import PromptCache
from worldmodel.serving import ParameterError, ServingConfig
from worldmodel.text_encoder import clean, load_umt5
from worldstream.embed import clean as client_clean
from worldstream.embed import embed

from tests.unit.text_encoders import VOCAB_SIZE, tiny_encoder, tiny_tokenizer, write_text_encoder
from tests.unit.worlds import TINY, tiny_world

pytest.importorskip("transformers")

CPU = torch.device("cpu")
SIZES = TINY.transformer  # 4 tokens of 16 numbers
TEXTS = (
    "a street in winter",  # five tokens: cut
    "day",
    "",
    "  rain \n\t a ",
    "rain &amp;amp; snow",
    "Ünïcode 庭園 🌸",
)


@pytest.fixture(scope="module")
def modules():
    return tiny_tokenizer(), tiny_encoder()


@pytest.fixture
def folder(modules, tmp_path):
    return write_text_encoder(tmp_path, modules[1], modules[0])


def load(folder):
    return load_umt5(folder / "text_encoder", folder / "tokenizer", SIZES, CPU)


def by_diffusers(modules, text):
    """[text_len, d] by the pipeline's own method, padded with zeros."""
    pipeline = importlib.import_module("diffusers").WanPipeline
    parts = SimpleNamespace(tokenizer=modules[0], text_encoder=modules[1], _execution_device=CPU)
    with torch.inference_mode():
        return pipeline._get_t5_prompt_embeds(parts, text, max_sequence_length=SIZES.text_len)[0].numpy()


def test_the_vectors_are_those_of_diffusers_pipeline(modules, folder):
    pytest.importorskip("diffusers")
    encoder = load(folder)
    lengths = []
    for text in TEXTS:
        vectors, wanted = encoder.encode(text), by_diffusers(modules, text)
        lengths.append(len(vectors))
        assert vectors.dtype == np.float32
        # The pipeline computes its padding too, which changes the order of sums; numbers are about 1.
        np.testing.assert_allclose(vectors, wanted[: len(vectors)], atol=2e-5)
        assert not wanted[len(vectors) :].any()
    assert lengths == [4, 2, 1, 3, 4, 4]


def test_words_behind_the_longest_text_change_nothing(folder):
    encoder = load(folder)
    np.testing.assert_array_equal(encoder.encode("a street in winter"), encoder.encode("a street in rain"))
    assert not np.array_equal(encoder.encode("a day"), encoder.encode("a night"))


def test_a_published_file_in_shards_and_bfloat16_is_read(tmp_path):
    model = tiny_encoder().bfloat16()
    write_text_encoder(tmp_path, model, max_shard_size="4KB")
    assert len(list((tmp_path / "text_encoder").glob("*.safetensors"))) > 1
    tokens = tiny_tokenizer()("day", return_tensors="pt")
    with torch.inference_mode():
        wanted = model.float()(**tokens).last_hidden_state[0].numpy()
    np.testing.assert_allclose(load(tmp_path).encode("day"), wanted, atol=2e-5)


def test_the_client_makes_the_vectors_that_the_server_makes(folder):
    encoder = load(folder)
    for text in TEXTS:
        assert client_clean(text) == clean(text)
    np.testing.assert_allclose(embed(TEXTS[0], folder, SIZES.text_len), encoder.encode(TEXTS[0]), atol=1e-6)


def test_a_text_is_mended_by_ftfy_where_that_is_there(monkeypatch):
    assert clean("  a &amp;lt; b\n") == "a < b"
    mended = SimpleNamespace(fix_text=lambda text: text.replace("Ã¼", "ü"), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ftfy", mended)
    assert clean("Ã¼ber ") == client_clean("Ã¼ber ") == "über"


@pytest.mark.gpu
def test_a_gpu_reads_in_bfloat16(folder):
    encoder = load_umt5(folder / "text_encoder", folder / "tokenizer", SIZES, torch.device("cuda", 0))
    vectors = encoder.encode("a street in winter")
    np.testing.assert_array_equal(encoder.encode("a street in winter"), vectors)
    np.testing.assert_array_equal(torch.from_numpy(vectors).bfloat16().float().numpy(), vectors)
    np.testing.assert_allclose(vectors, load(folder).encode("a street in winter"), atol=0.1)  # numbers are about 1


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_config(folder, **changes):
    change_json(folder / "text_encoder" / "config.json", **changes)


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def change_tensors(folder, change):
    path = folder / "text_encoder" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


BROKEN = {
    "no config": (lambda f: (f / "text_encoder/config.json").unlink(), r"text_encoder: config.json: no such file"),
    "no json": (lambda f: (f / "text_encoder/config.json").write_text("{"), r"text_encoder: config.json: cannot be re"),
    "no object": (lambda f: (f / "text_encoder/config.json").write_text("[]"), r"text_encoder: config.json: wanted an"),
    "another model": (lambda f: change_config(f, model_type="t5"), r"model_type: wanted umt5, got 't5'"),
    "no sizes": (lambda f: change_config(f, num_heads="two"), r"num_heads: wanted a whole number .*, got 'two'"),
    "odd sizes": (lambda f: change_config(f, num_heads=-1), r"num_heads: wanted a whole number from 1 to 1000, got -1"),
    "another width": (
        lambda f: change_config(f, d_model=32),
        r"d_model: wanted 16, the transformer's text_dim, got 32",
    ),
    # This once made modules for hours.
    "endless layers": (lambda f: change_config(f, num_layers=10**9), r"num_layers: .* from 1 to 1000, got 1000000000"),
    "endless words": (
        lambda f: change_config(f, vocab_size=10**15),
        r"vocab_size: wanted a whole number .*, got 10000",
    ),
    "no distance": (lambda f: change_config(f, relative_attention_max_distance=0), r"_distance: wanted .*, got 0"),
    "odd dtype": (lambda f: change_config(f, dtype="wide"), r"text_encoder: config.json: no sizes of an UMT5"),
    "fewer layers": (lambda f: change_config(f, num_layers=1), r"text_encoder: 0 keys missing; 10 keys not known"),
    "more layers": (lambda f: change_config(f, num_layers=3), r"text_encoder: 10 keys missing \(encoder.block.2"),
    "no weights": (lambda f: (f / "text_encoder/model.safetensors").unlink(), r"text_encoder: no .safetensors file"),
    "truncated": (
        lambda f: (f / "text_encoder/model.safetensors").write_bytes(
            (f / "text_encoder/model.safetensors").read_bytes()[:-9]
        ),
        r"text_encoder: model.safetensors: cannot be read",
    ),
    "shape": (
        lambda f: change_tensors(f, lambda t: t.update({"shared.weight": torch.zeros(VOCAB_SIZE, 7)})),
        r"text_encoder: shared.weight: wanted shape \[48, 16\], the file has \[48, 7\]",
    ),
    "missing": (
        lambda f: change_tensors(f, lambda t: t.pop("encoder.final_layer_norm.weight")),
        r"text_encoder: 1 keys missing \(encoder.final_layer_norm.weight\); 0 keys not known",
    ),
    "not finite": (
        lambda f: change_tensors(f, lambda t: t["shared.weight"].__setitem__((5, 3), torch.nan)),
        r"^text_encoder: shared.weight: wanted numbers that are finite in torch.float32, model.safetensors has others",
    ),
    "pickled": (  # by torch.save: what could run anything is not looked at
        lambda f: (f / "text_encoder/model.safetensors").rename(f / "text_encoder/pytorch_model.bin"),
        r"^text_encoder: no .safetensors file found",
    ),
    "pipe": (lambda f: replace_by_pipe(f / "tokenizer/tokenizer_config.json"), r"^tokenizer: .*wanted a file, this is"),
    "code": (
        lambda f: change_json(
            f / "tokenizer/tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.T", None]}, tokenizer_class="T"
        ),
        r"^tokenizer: tokenizer.json or .* cannot be read \(ValueError\)",
    ),
    "surplus": (
        lambda f: change_tensors(f, lambda t: t.update(decoder=torch.zeros(1))),
        r"text_encoder: 0 keys missing; 1 keys not known \(decoder\)",
    ),
    "no tokenizer": (
        lambda f: (f / "tokenizer/tokenizer.json").unlink(),
        r"^tokenizer: tokenizer.json: no such file",
    ),
    "broken tokenizer": (
        lambda f: (f / "tokenizer/tokenizer.json").write_text("{"),
        r"tokenizer: tokenizer.json or .* cannot be read",
    ),
    "larger tokenizer": (
        lambda f: change_config(f, vocab_size=9),
        r"tokenizer: wanted tokens below 9, which the text encoder knows, got 40",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_is_one_clear_error_without_a_path(folder, name):
    break_it, wanted = BROKEN[name]
    break_it(folder)
    with pytest.raises(CheckpointError, match=wanted) as raised:
        load(folder)
    assert str(folder) not in str(raised.value)


class Numbered:
    """A tokenizer of transformers, whose texts have no tokens, or whose words have far numbers."""

    def __init__(self, largest=0):
        self.largest = largest

    def get_vocab(self):
        return {"day": self.largest}

    def __call__(self, *_, **__):
        return SimpleNamespace(
            input_ids=torch.zeros(1, 0, dtype=torch.int64), attention_mask=torch.zeros(1, 0, dtype=torch.int64)
        )


@pytest.mark.parametrize(
    ("largest", "wanted"),
    [
        (48, "tokenizer: wanted tokens below 48, which the text encoder knows, got 48"),  # one token, but a far one
        (47, "tokenizer: the empty text (became 0 tokens|cannot be read)"),
    ],
)
def test_tokens_that_the_encoder_cannot_read_are_told_at_load(folder, monkeypatch, largest, wanted):
    transformers = importlib.import_module("transformers")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Numbered(largest))
    with pytest.raises(CheckpointError, match=wanted):
        load(folder)


def test_a_text_encoder_that_has_no_room_is_refused_before_it_is_read(folder, monkeypatch):
    monkeypatch.setattr("worldmodel.text_encoder.free_bytes", lambda _: 1000)
    (folder / "text_encoder" / "model.safetensors").unlink()
    with pytest.raises(ParameterError, match=r"device cpu: .* are free, the text encoder takes .*; parameter text_dev"):
        load(folder)


def test_a_checkpoint_without_a_tokenizer_says_so(folder):
    with pytest.raises(CheckpointError, match="text_encoder: wanted the folder tokenizer beside it, there is none"):
        load_umt5(folder / "text_encoder", None, SIZES, CPU)


def test_without_transformers_the_error_names_the_package_and_a_way_out(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ParameterError, match=r"needs the Python package transformers.*none.*prompt_embeds"):
        load(folder)


# Which text encoder a world gets


def published(folder):
    """A tiny transformer in the original layout, and our own codec beside it."""
    world = tiny_world()
    inner = folder / "transformer"
    inner.mkdir()
    save_file({k: v.contiguous() for k, v in world.transformer.state_dict().items()}, inner / "model.safetensors")
    save_file({k: v.contiguous() for k, v in world.codec.state_dict().items()}, folder / "codec.safetensors")
    return folder


def load_tiny(folder, **serving):
    return load_world(TINY, ServingConfig(checkpoint=str(folder), **serving), folder, Instance("CPU", 0))


def test_a_checkpoint_that_brings_a_text_encoder_is_served_with_it(folder):
    world = load_tiny(published(folder))
    wanted = load(folder).encode("rain in winter")
    np.testing.assert_array_equal(world.prompts.encode("rain in winter"), wanted)
    assert (world.prompts.reads_text, world.prompts.num_encoded) == (True, 1)  # what warming up read is nobody's


def test_a_published_checkpoint_without_one_reads_no_text(tmp_path):
    world = load_tiny(published(tmp_path))
    assert not world.prompts.reads_text
    assert world.prompts.encode("day").shape == (0, 16)


def test_the_choice_can_be_made_by_hand(folder):
    published(folder)
    words = load_tiny(folder, text_encoder="words")
    np.testing.assert_array_equal(words.prompts.encode("day"), HashedWords(4, 16).encode("day"))
    assert not load_tiny(folder, text_encoder="none").prompts.reads_text
    load_tiny(folder, text_encoder="umt5", text_device="cpu")


def test_worlds_of_ours_hash_words(tmp_path):
    world = load_world(TINY, ServingConfig(), tmp_path, Instance("CPU", 0))
    np.testing.assert_array_equal(world.prompts.encode("day"), HashedWords(4, 16).encode("day"))


def test_a_text_encoder_that_is_not_there_is_refused(tmp_path):
    for folder, serving in ((published(tmp_path), {}), (tmp_path, {"checkpoint": ""})):
        wanted = {"checkpoint": str(folder), "text_encoder": "umt5", **serving}
        with pytest.raises(CheckpointError, match="umt5 is wanted, the checkpoint has no folder text_encoder"):
            load_world(TINY, ServingConfig(**wanted), folder, Instance("CPU", 0))


def test_a_text_device_that_is_not_there_is_refused(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match="parameter text_device: wanted cuda:1, but torch sees no GPU"):
        load_tiny(published(folder), text_device="cuda:1")


# The cache


class Lengths:
    """A text becomes as many rows as it has letters; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def encode(self, text):
        self.asked.append(text)
        return np.full((len(text), 2), len(text), np.float32)


def test_a_prompt_that_comes_again_is_not_encoded_again():
    encoder = Lengths()
    cache = PromptCache(encoder, 1000)
    first = cache.encode("abc")
    assert cache.encode("abc") is first
    assert cache.find("abc") is first
    assert encoder.asked == ["", "abc"]
    assert (cache.num_encoded, cache.num_hits) == (1, 2)


def test_texts_and_vectors_stay_within_their_bytes_and_the_least_used_goes_first():
    encoder = Lengths()
    cache = PromptCache(encoder, 2 * (256 + 3 + 3 * 2 * 4))  # two texts of three letters
    for text in ("abc", "def", "abc", "ghi"):
        cache.encode(text)
    assert cache.num_bytes == 566
    assert cache.find("def") is None
    assert cache.find("abc") is not None
    cache.encode("a text that is too long to be kept" * 10)
    assert cache.num_bytes == 0


class Weighed(np.ndarray):
    """Counts how often its bytes are asked for."""

    num_times = 0

    @property
    def nbytes(self):
        Weighed.num_times += 1
        return super().nbytes


class Heavy(Lengths):
    def encode(self, text):
        return super().encode(text).view(Weighed)


def test_each_text_is_weighed_when_it_comes_and_when_it_goes_and_not_for_every_other():
    # All that were kept were added up anew for each that came and each that went, with every request waiting for it:
    # minutes, for one long prompt after a day of short ones.
    cache = PromptCache(Heavy(), 100_000)
    for number in range(200):
        cache.encode(f"{number}")
    cache.encode("long" * 2000)
    assert 201 <= Weighed.num_times <= 2 * 201


def test_texts_without_known_words_are_not_kept_without_end():
    # Their vectors take no bytes; what Python takes for each is a hundred times its few letters.
    cache = PromptCache(NoTextEncoder(2), 1000)
    for text in ("?", "!", ",", ";"):
        cache.encode(text)
    assert [cache.find(text) is None for text in ("?", "!", ",", ";")] == [True, False, False, False]


def test_the_empty_text_is_always_there_and_never_counted():
    encoder = Lengths()
    cache = PromptCache(encoder, 0)
    for _ in range(3):
        assert cache.encode("").shape == (0, 2)
    cache.forget()
    assert cache.find("") is not None
    assert encoder.asked == [""]
    assert (cache.num_encoded, cache.num_hits) == (0, 0)


def test_forgetting_begins_anew():
    encoder = Lengths()
    cache = PromptCache(encoder, 1000)
    for _ in range(2):
        cache.encode("abc")
    cache.forget()
    assert (cache.num_encoded, cache.num_hits, cache.num_bytes) == (0, 0, 0)
    cache.encode("abc")
    assert encoder.asked == ["", "abc", "abc"]
