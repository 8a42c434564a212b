"""What gpu_check.py finds out about prompts: UMT5 at its published size, with weights drawn on the device."""

from __future__ import annotations

import random
import time
from typing import Any

from gpu_lab import Budget, Lab, NotHereError
from gpu_worlds import fill, median

# isort: split
import numpy as np
import torch
from worldmodel.prompt_cache import PromptCache
from worldmodel.text_encoder import Umt5

# Of umt5-xxl's encoder, and something of the same form.
UMT5_XXL = {"vocab_size": 256384, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64}
UMT5_TINY = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2}
TEXT_LEN = 512
WORDS = ("day", "night", "snow", "street", "winter", "rain", "a", "in", "the", "of", "under", "red", "blue", "old")
GIB = 2**30


def text_encoder(lab: Lab, budget: Budget) -> dict[str, Any]:
    """Milliseconds of a prompt as long as it may be, of a short one, and of one that was read lately; memory."""
    lab.forget()
    before = lab.allocated_bytes()
    encoder, num_parameters, num_bytes = _random_umt5(lab)
    prompts = PromptCache(encoder, budget_bytes=1 << 30)
    prompts.encode(_text(2 * TEXT_LEN, seed=1 << 20))  # does not count
    spent: dict[str, list[float]] = {"long": [], "short": [], "cached": []}
    goes_on = budget.rounds()
    while goes_on(number := len(spent["long"])):
        for kind, text in (
            ("long", _text(2 * TEXT_LEN, number)),
            ("cached", _text(2 * TEXT_LEN, number)),
            ("short", _text(12, number)),
        ):
            began = time.perf_counter()
            vectors = prompts.encode(text)
            spent[kind].append(1e3 * (time.perf_counter() - began))
            if kind == "cached":
                longest, is_finite = len(vectors), bool(np.isfinite(vectors).all())
    return {
        "parameters": num_parameters,
        "weights_gib": round(num_bytes / GIB, 3),
        "tokens": longest,
        "finite": is_finite,
        **{f"{kind}_ms": median(times) for kind, times in spent.items()},
        "encoded": prompts.num_encoded,
        "from_the_cache": prompts.num_hits,
        "peak_gib": round((lab.peak_bytes() - before) / GIB, 3),
        "rounds": len(spent["long"]),
    }


def _random_umt5(lab: Lab) -> tuple[Umt5, int, int]:
    """On the device, in the dtype that loading would give it; with the number and the bytes of its parameters."""
    try:
        import transformers
    except ImportError as error:
        raise NotHereError(f"the Python package transformers cannot be imported ({error})") from error
    sizes = UMT5_TINY if lab.is_tiny else UMT5_XXL
    with torch.device("meta"):
        model = transformers.UMT5EncoderModel(transformers.UMT5Config(feed_forward_proj="gated-gelu", **sizes))
    model.encoder.embed_tokens = None  # the same table as `shared`
    model = model.to(lab.dtype)
    num_bytes = sum(each.nbytes for each in model.parameters())
    if 1.1 * num_bytes > lab.free_bytes():
        raise NotHereError(f"UMT5 takes {num_bytes / GIB:.1f} GiB, {lab.free_bytes() / GIB:.1f} GiB are free")
    fill(model.to_empty(device=lab.device), lab.device)
    model.encoder.embed_tokens = model.shared
    if lab.is_gpu:
        torch.cuda.synchronize(lab.device)  # another stream will read the weights
    tokenizer = transformers.T5Tokenizer(vocab=_vocabulary(), extra_ids=0, additional_special_tokens=[])
    return Umt5(tokenizer, model, TEXT_LEN, lab.device), sum(each.numel() for each in model.parameters()), num_bytes


def _vocabulary() -> list[tuple[str, float]]:
    """Of a unigram tokenizer: a word, a token."""
    special = [(name, 0.0) for name in ("<pad>", "</s>", "<unk>")]
    return [*special, ("▁", -4.0), *((f"▁{word}", -2.0) for word in WORDS)]


def _text(num_words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))
