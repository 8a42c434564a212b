"""How published checkpoints name their tensors, in one table for each layout that differs from ours. Pure.

The original layout has the key names of the published code, which are ours. That of diffusers names the Wan parts anew;
of the camera's parts it knows nothing, they keep their names. Of Wan's VAE diffusers' module is what is filled here.
"""

from __future__ import annotations

import re

# diffusers' beginning of a key -> the original one.
OUTER_NAMES = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "scale_shift_table": "head.modulation",
    "proj_out": "head.head",
}
# The same behind "blocks.N.". diffusers counts the norms in the order of their use: its norm2 is the original norm3.
BLOCK_NAMES = {
    **{
        f"{theirs}.{part}": f"{ours}.{name}"
        for theirs, ours in (("attn1", "self_attn"), ("attn2", "cross_attn"))
        for part, name in (
            ("to_q", "q"),
            ("to_k", "k"),
            ("to_v", "v"),
            ("to_out.0", "o"),
            ("norm_q", "norm_q"),
            ("norm_k", "norm_k"),
        )
    },
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    "norm2": "norm3",
    "scale_shift_table": "modulation",
}
_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")


def original_name(key: str) -> str:
    """A key in the original layout, whichever layout it comes from; what no rule knows stays as it is."""
    block = _BLOCK.fullmatch(key)
    if block is None:
        return _renamed(key, OUTER_NAMES)
    return block[1] + _renamed(block[2], BLOCK_NAMES)


# The same of Wan's VAE, the other way: its published file -> diffusers.
VAE_NAMES = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    **{
        f"{side}.{theirs}": f"{side}.{name}"
        for side in ("encoder", "decoder")
        for theirs, name in (
            ("conv1", "conv_in"),
            ("middle.0", "mid_block.resnets.0"),
            ("middle.1", "mid_block.attentions.0"),
            ("middle.2", "mid_block.resnets.1"),
            ("head.0", "norm_out"),
            ("head.2", "conv_out"),
        )
    },
    "encoder.downsamples": "encoder.down_blocks",
}
VAE_PARTS = {
    ".residual.0.": ".norm1.",
    ".residual.2.": ".conv1.",
    ".residual.3.": ".norm2.",
    ".residual.6.": ".conv2.",
    ".shortcut.": ".conv_shortcut.",
}
_UPSAMPLE = re.compile(r"decoder\.upsamples\.(\d+)\.(.+)")
VAE_STAGE = 4  # the published decoder counts through its stages: three residual blocks, then what grows


def vae_name(key: str) -> str:
    """A key of Wan's VAE as diffusers has it, from the published file; what no rule knows stays as it is."""
    upsample = _UPSAMPLE.fullmatch(key)
    if upsample:
        stage, place = divmod(int(upsample[1]), VAE_STAGE)
        part = "upsamplers.0" if place == VAE_STAGE - 1 else f"resnets.{place}"
        key = f"decoder.up_blocks.{stage}.{part}.{upsample[2]}"
    key = _renamed(key, VAE_NAMES)
    for theirs, name in VAE_PARTS.items():
        key = key.replace(theirs, name)
    return key


def _renamed(key: str, names: dict[str, str]) -> str:
    for theirs, ours in names.items():
        if key == theirs or key.startswith(theirs + "."):
            return ours + key[len(theirs) :]
    return key
