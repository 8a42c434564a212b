"""UMT5 as Wan's models read it: a text becomes the encoder's last hidden states. Knows no worlds and no sessions.

Reads the layout of diffusers: a folder `text_encoder` (config.json, safetensors) beside a folder `tokenizer`. The
package transformers is imported here, and only where a checkpoint has them. What is computed is what diffusers' Wan
pipelines compute: the same cleaning and cutting of the text, attention to its own tokens alone, and no vectors past its
end; the transformer pads with zeros.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import importlib.util
import logging
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worldmodel.checkpoint import load_strict
from worldmodel.checkpoint_files import CheckpointError, Range, check_is_file, named, read_object, shown
from worldmodel.config import TransformerConfig
from worldmodel.prompt import Vectors
from worldmodel.room import check_text_free, free_bytes
from worldmodel.serving import ParameterError

log = logging.getLogger("worldstream")

# What config.json may say, the most being some ten times what is published: each makes torch work or allocate.
SIZE = Range(1, 1 << 17)
RANGES = {
    "d_model": SIZE,
    "d_kv": SIZE,
    "d_ff": SIZE,
    "num_heads": Range(1, 1000),
    "num_layers": Range(1, 1000),
    "vocab_size": Range(1, 1 << 22),
    "relative_attention_num_buckets": SIZE,
    "relative_attention_max_distance": SIZE,
    "layer_norm_epsilon": Range(1e-12, 0.1, is_whole=False),
}


class Umt5:
    """An encoder on its device, with its tokenizer. For one thread at a time, whichever it is."""

    def __init__(self, tokenizer: Any, model: Any, text_len: int, device: torch.device) -> None:
        """Take the modules.

        Args:
            tokenizer: of transformers.
            model: an UMT5EncoderModel, on the device.
            text_len: most tokens of a text, its end's included.
        """
        self._tokenizer = tokenizer
        self._model = model.eval().requires_grad_(False)
        self._text_len = text_len
        self._device = device
        # Its own stream: on the default one it would run between two steps of somebody's chunk, and hold both up.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def encode(self, text: str) -> Vectors:
        """The last hidden states of a text's tokens, [n, text_dim], 1 <= n <= text_len; a longer text is cut.

        The tokens go in without padding. Pipelines pad to text_len, let nothing attend to the padding, and cut it off
        behind the encoder: the same numbers but for the order of sums, at text_len/n times the work.
        """
        tokens = self._tokenizer(
            clean(text),
            max_length=self._text_len,
            truncation=True,
            add_special_tokens=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        with torch.inference_mode(), self._beside():
            ids, mask = tokens.input_ids.to(self._device), tokens.attention_mask.to(self._device)
            states = self._model(ids, mask).last_hidden_state[0]
            vectors: Vectors = states.float().cpu().numpy()  # float32 holds every bfloat16
        return vectors

    def _beside(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def clean(text: str) -> str:
    """A text as the models have seen texts: mended, without HTML's entities, with single spaces.

    Mended by ftfy where it is installed, as in diffusers; the only texts that it changes are broken or typographic.
    """
    if importlib.util.find_spec("ftfy"):
        text = importlib.import_module("ftfy").fix_text(text)
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()


def load_umt5(
    encoder_folder: Path, tokenizer_folder: Path | None, sizes: TransformerConfig, device: torch.device
) -> Umt5:
    """Read a text encoder, straight to its device: in bfloat16 on a GPU, in float32 on a CPU.

    Args:
        sizes: of the transformer that will read its vectors.

    Raises:
        ParameterError: the package transformers is missing, or the room for its weights.
        CheckpointError: a file is missing or damaged, or does not fit the others.
    """
    if tokenizer_folder is None:
        raise CheckpointError("text_encoder: wanted the folder tokenizer beside it, there is none")
    transformers = _transformers()
    with named("text_encoder"):
        config = _config(transformers, encoder_folder, sizes.text_dim)
    with named("tokenizer"):
        tokenizer = _tokenizer(transformers, tokenizer_folder, config.vocab_size)
    with named("text_encoder"):
        model = _model(transformers, config, encoder_folder, device)
    encoder = Umt5(tokenizer, model, sizes.text_len, device)
    with named("tokenizer"):
        _try_out(encoder)
    return encoder


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ParameterError(
            f"parameter text_encoder: umt5 needs the Python package transformers, which cannot be imported ({error}); "
            "without it wanted text_encoder none, and requests with prompt_embeds"
        ) from error


def _config(transformers: Any, folder: Path, text_dim: int) -> Any:
    said = read_object(folder / "config.json")
    with named("config.json"):
        if said.get("model_type") != "umt5":
            raise CheckpointError(f"model_type: wanted umt5, got {shown(said.get('model_type'))}")
        for name, kind in RANGES.items():
            if name in said:
                kind.check(name, said[name])
        try:
            config = transformers.UMT5Config.from_dict(said)
        except Exception as error:  # transformers has many of its own
            raise CheckpointError(f"no sizes of an UMT5 ({type(error).__name__})") from error
        if config.d_model != text_dim:
            raise CheckpointError(f"d_model: wanted {text_dim}, the transformer's text_dim, got {config.d_model}")
    return config


def _model(transformers: Any, config: Any, folder: Path, device: torch.device) -> Any:
    """An UMT5EncoderModel with its weights."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    try:
        with torch.device("meta"):
            model = transformers.UMT5EncoderModel(config)
    except Exception as error:  # as above
        raise CheckpointError(f"config.json: no UMT5 can be made of it ({type(error).__name__})") from error
    model.encoder.embed_tokens = None  # the same table as `shared`, and not in the files
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    check_text_free(num_parameters * dtype.itemsize, free_bytes(device), device)
    load_strict(model, folder, device=device, dtype_of=lambda _: dtype)
    model.encoder.embed_tokens = model.shared
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # other streams will read the weights
    log.info("text encoder: %.1f M parameters on %s as %s", num_parameters / 1e6, device, dtype)
    return model


def _tokenizer(transformers: Any, folder: Path, vocab_size: int) -> Any:
    # Without tokenizer.json transformers would make one without words. To open a named pipe would wait for ever.
    for file in (folder / "tokenizer.json", *folder.glob("*.json")):
        check_is_file(file)
    try:
        # No code of the checkpoint's: unless that is said, transformers asks a terminal whether to run it.
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        largest = max(tokenizer.get_vocab().values())
    except Exception as error:  # as above, and the messages name paths
        raise CheckpointError(f"tokenizer.json or what is beside it cannot be read ({type(error).__name__})") from error
    if largest >= vocab_size:
        raise CheckpointError(f"wanted tokens below {vocab_size}, which the text encoder knows, got {largest}")
    return tokenizer


def _try_out(encoder: Umt5) -> None:
    """Read the empty text, which every session may begin with: at least its end has to be a token."""
    try:
        vectors = encoder.encode("")
    except Exception as error:  # of transformers and torch
        raise CheckpointError(f"the empty text cannot be read ({type(error).__name__})") from error
    if not (len(vectors) and np.isfinite(vectors).all()):
        raise CheckpointError(f"the empty text became {len(vectors)} tokens; wanted 1 or more, of finite numbers")
