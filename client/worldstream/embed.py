"""Makes a prompt's token vectors on this machine, for servers that have no text encoder. Needs transformers and torch.

Computes what the server's own UMT5 would: see worldmodel/text_encoder.py. n is the number of tokens, d the numbers of
each.
"""

import html
import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worldstream.checks import Float32, checked_embeds, checked_text
from worldstream.errors import InvalidInputError

MAX_TOKENS = 512  # of the published models
_SIZE = (1, 1 << 17)
# From and to, of what text_encoder/config.json may say; whole numbers where these are. The server's own ranges, written
# down again: each number makes torch work or allocate, without an end if nobody bounds it.
RANGES: Mapping[str, tuple[float, float]] = {
    "d_model": _SIZE,
    "d_kv": _SIZE,
    "d_ff": _SIZE,
    "num_heads": (1, 1000),
    "num_layers": (1, 1000),
    "vocab_size": (1, 1 << 22),
    "relative_attention_num_buckets": _SIZE,
    "relative_attention_max_distance": _SIZE,
    "layer_norm_epsilon": (1e-12, 0.1),
}
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

    def compute() -> Float32:
        tokens = tokenizer(cleaned, max_length=max_tokens, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(tokens.input_ids.to(device), tokens.attention_mask.to(device)).last_hidden_state[0]
        vectors: Float32 = states.float().cpu().numpy().astype(np.float32)
        return vectors

    return checked_embeds(_read("text_encoder", compute))


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
    # No code of the checkpoint's: unless that is said, transformers asks the terminal whether to run it.
    options = {"local_files_only": True, "trust_remote_code": False}
    return _read("tokenizer", lambda: transformers.AutoTokenizer.from_pretrained(str(folder), **options))


def _encoder(transformers: Any, checkpoint: Path) -> Any:
    folder = checkpoint / "text_encoder"
    if not (folder / "config.json").is_file():
        raise InvalidInputError("checkpoint: wanted a folder that has text_encoder/config.json, it has none")
    said = _read("text_encoder", lambda: json.loads((folder / "config.json").read_text(encoding="utf-8")))
    kind = said.get("model_type") if isinstance(said, dict) else None
    if kind != "umt5":
        raise InvalidInputError(f"checkpoint: text_encoder/config.json: wanted model_type umt5, got {kind!r:.60}")
    _check_ranges(said)
    options = {"dtype": "auto", "local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    load = transformers.UMT5EncoderModel.from_pretrained
    model, keys = _read("text_encoder", lambda: load(str(folder), **options))
    # transformers would put random numbers in a missing key's place, and only warn.
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys.get(what):
            names = sorted(str(key) for key in keys[what])
            raise InvalidInputError(
                f"checkpoint: text_encoder: {len(names)} {what.replace('_', ' ')} ({', '.join(names[:3])})"
            )
    return model


def _check_ranges(said: Mapping[str, Any]) -> None:
    for name, (least, most) in RANGES.items():
        value = said.get(name, least)
        is_whole = isinstance(least, int)
        is_number = isinstance(value, int if is_whole else (int, float)) and not isinstance(value, bool)
        if not (is_number and least <= value <= most):  # NaN is not
            wanted = f"{'a whole number' if is_whole else 'a number'} from {least} to {most}"
            raise InvalidInputError(f"checkpoint: text_encoder/config.json: {name}: wanted {wanted}, got {value!r:.60}")


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # transformers has many of its own
        raise InvalidInputError(f"checkpoint: {name} cannot be used ({type(error).__name__})") from error
