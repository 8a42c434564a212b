"""Makes a prompt's token vectors on this machine, for servers that have no text encoder. Needs transformers and torch.

Computes what the server's own UMT5 would: see worldmodel/text_encoder.py. n is the number of tokens, d the numbers of
each.
"""

import html
import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from worldstream.checks import Float32, checked_text
from worldstream.errors import InvalidInputError

MAX_TOKENS = 512  # of the published models
_TOKENIZERS = ("tokenizer", "google/umt5-xxl")  # in the layout of diffusers, in the original one


def embed(text: str, checkpoint: Path, max_tokens: int = MAX_TOKENS, device: str = "cpu") -> Float32:
    """The last hidden states of a text's tokens, float32 [n, d], 1 <= n <= max_tokens; a longer text is cut.

    Args:
        text: the prompt.
        checkpoint: a folder with the folders `text_encoder` and `tokenizer`, as transformers writes them.
        max_tokens: the served model's text_len.
        device: torch's name of where to compute, in the dtype that the files have.

    Raises:
        InvalidInputError: if a package or a folder is missing, or cannot be used.
    """
    cleaned = clean(checked_text("text", text))
    torch, transformers = _package("torch"), _package("transformers")
    _check_device(torch, device)
    tokenizer = _tokenizer(transformers, checkpoint)
    model = _encoder(transformers, checkpoint).eval().to(device)
    tokens = tokenizer(cleaned, max_length=max_tokens, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(tokens.input_ids.to(device), tokens.attention_mask.to(device)).last_hidden_state[0]
        vectors: Float32 = states.float().cpu().numpy().astype(np.float32)
    return vectors


def clean(text: str) -> str:
    """A text as the models have seen texts: mended by ftfy where that is installed, without entities, single-spaced."""
    if importlib.util.find_spec("ftfy"):
        text = importlib.import_module("ftfy").fix_text(text)
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidInputError(
            f"embed: wanted the Python package {name}, which cannot be imported; pip install torch transformers"
        ) from error


def _check_device(torch: Any, device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter from builds for other devices
        raise InvalidInputError(f"device: torch cannot compute on {device!r} here") from error


def _tokenizer(transformers: Any, checkpoint: Path) -> Any:
    # Without that file transformers would make one without words.
    folder = next((checkpoint / name for name in _TOKENIZERS if (checkpoint / name / "tokenizer.json").is_file()), None)
    if folder is None:
        raise InvalidInputError("checkpoint: wanted a folder that has tokenizer/tokenizer.json, it has none")
    return _read("tokenizer", lambda: transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True))


def _encoder(transformers: Any, checkpoint: Path) -> Any:
    folder = checkpoint / "text_encoder"
    if not (folder / "config.json").is_file():
        raise InvalidInputError("checkpoint: wanted a folder that has text_encoder/config.json, it has none")
    return _read(
        "text_encoder",
        lambda: transformers.UMT5EncoderModel.from_pretrained(str(folder), dtype="auto", local_files_only=True),
    )


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # transformers has many of its own
        raise InvalidInputError(f"checkpoint: {name} cannot be read ({type(error).__name__})") from error
