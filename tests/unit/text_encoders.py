"""A tiny UMT5 and its tokenizer with random weights, written as transformers writes the published ones."""

from __future__ import annotations

import torch

SPECIAL = ("<pad>", "</s>", "<unk>")
WORDS = ("day", "night", "snow", "a", "street", "in", "winter", "rain", "&", "<", "é")
VOCAB_SIZE = 48


def tiny_tokenizer():
    import transformers

    letters = [(letter, -6.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    words = [(f"▁{word}", -2.0) for word in WORDS]
    vocab = [*((name, 0.0) for name in SPECIAL), ("▁", -4.0), *words, *letters]
    return transformers.T5Tokenizer(vocab=vocab[:VOCAB_SIZE], extra_ids=0, additional_special_tokens=[])


def tiny_encoder(d_model=16, vocab_size=VOCAB_SIZE):
    """Every number at random, those of norms included."""
    import transformers

    torch.manual_seed(0)
    config = transformers.UMT5Config(
        vocab_size=vocab_size,
        d_model=d_model,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    model = transformers.UMT5EncoderModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(
                1 + 0.2 * torch.randn_like(parameter) if "norm" in name else 0.4 * torch.randn_like(parameter)
            )
    return model


def write_text_encoder(folder, model=None, tokenizer=None, **options):
    """The folders `text_encoder` and `tokenizer` of a checkpoint."""
    (model or tiny_encoder()).save_pretrained(folder / "text_encoder", **options)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder / "tokenizer")
    return folder
