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
import json
import logging
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from worldmodel.checkpoint import CheckpointError, load_strict
from worldmodel.config import TransformerConfig
from worldmodel.prompt import Vectors
from worldmodel.serving import ParameterError

log = logging.getLogger("worldstream")


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
        ParameterError: the package transformers is missing.
        CheckpointError: a file is missing or damaged, or does not fit the others.
    """
    if tokenizer_folder is None:
        raise CheckpointError("text_encoder: wanted the folder tokenizer beside it, there is none")
    transformers = _transformers()
    config = _config(transformers, encoder_folder)
    if config.d_model != sizes.text_dim:
        raise CheckpointError(
            f"text_encoder: config.json: wanted d_model {sizes.text_dim}, the transformer's, got {config.d_model}"
        )
    tokenizer = _tokenizer(transformers, tokenizer_folder)
    if len(tokenizer) > config.vocab_size:
        raise CheckpointError(
            f"tokenizer: wanted at most {config.vocab_size} tokens, which the text encoder knows, got {len(tokenizer)}"
        )
    model = _empty(transformers, config)
    model.encoder.embed_tokens = None  # the same table as `shared`, and not in the files
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    try:
        load_strict(model, encoder_folder, device=device, dtype_of=lambda _: dtype)
    except CheckpointError as error:
        raise CheckpointError(f"text_encoder: {error}") from error
    model.encoder.embed_tokens = model.shared
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # other streams will read the weights
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("text encoder: %.1f M parameters on %s as %s", num_parameters / 1e6, device, dtype)
    return Umt5(tokenizer, model, sizes.text_len, device)


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ParameterError(
            f"parameter text_encoder: umt5 needs the Python package transformers, which cannot be imported ({error}); "
            "without it wanted text_encoder none, and requests with prompt_embeds"
        ) from error


def _config(transformers: Any, folder: Path) -> Any:
    try:
        said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = said["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"text_encoder: config.json: wanted an object with model_type in JSON ({type(error).__name__})"
        ) from error
    if kind != "umt5":
        raise CheckpointError(f"text_encoder: config.json: wanted model_type umt5, got {kind!r}")
    try:
        return transformers.UMT5Config.from_dict(said)
    except Exception as error:  # transformers has many of its own
        raise CheckpointError(f"text_encoder: config.json: no sizes of an UMT5 ({type(error).__name__})") from error


def _empty(transformers: Any, config: Any) -> Any:
    try:
        with torch.device("meta"):
            return transformers.UMT5EncoderModel(config)
    except Exception as error:  # as above
        raise CheckpointError(
            f"text_encoder: config.json: no UMT5 can be made of it ({type(error).__name__})"
        ) from error


def _tokenizer(transformers: Any, folder: Path) -> Any:
    if not (folder / "tokenizer.json").is_file():  # transformers would make one without words
        raise CheckpointError("tokenizer: wanted tokenizer.json in this folder, there is none")
    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # as above, and the messages name paths
        raise CheckpointError(
            f"tokenizer: tokenizer.json or tokenizer_config.json cannot be read ({type(error).__name__})"
        ) from error
