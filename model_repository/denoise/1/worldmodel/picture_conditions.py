"""What a picture becomes for the transformer, and a cache of it. Knows the codec, and no sessions.

Letters: C latent channels, h x w latent cells.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from worldmodel.codec import Codec
from worldmodel.config import MASK_CHANNELS, TIME_STRIDE, WorldConfig
from worldmodel.metrics import Counters
from worldmodel.pixels import Picture, fit_picture, picture_digest, to_device


class PictureConditions:
    """Encodes the pictures that sessions start from; one that was seen lately is not encoded again."""

    def __init__(
        self, codec: Codec, device: torch.device, dtype: torch.dtype, budget_bytes: int, counters: Counters
    ) -> None:
        """Take the codec, on its device.

        Args:
            device, dtype: of the conditions.
            budget_bytes: of the conditions that are kept.
        """
        self._codec = codec
        self._device = device
        self._dtype = dtype
        self._budget_bytes = budget_bytes
        self._counters = counters
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()  # least recently used first

    def condition_of(self, picture: Picture, fit: str, config: WorldConfig) -> Tensor:
        """Mask and latents of a picture [H, W, 3], fitted to the configured size; as `encode` returns them.

        The picture is hashed here, once a session, and nowhere else. A digest that a client sends is not trusted: it
        could give one client's picture to another.
        """
        key = picture_digest(picture, f"{fit} {config.sizes[0]}")
        if key in self._kept:
            self._counters.picture_cache_hits += 1
            self._kept.move_to_end(key)
            return self._kept[key]
        fitted = fit_picture(to_device(picture, self._device), config.height_px, config.width_px, fit)
        condition = self.encode(fitted, config.condition_latent_frames)
        self._kept[key] = condition
        while sum(each.nbytes for each in self._kept.values()) > self._budget_bytes:
            self._kept.popitem(last=False)
        return condition

    def encode(self, picture: Tensor, num_latents: int) -> Tensor:
        """Mask and latents of "the picture, then black".

        Args:
            picture: [3, H, W] in [-1, 1].
            num_latents: latent frames. The latents settle after a few, which is why a bounded prefix is enough for a
                session without end.

        Returns:
            [4 + C, num_latents, h, w].
        """
        clip = picture.new_zeros(1, 1 + TIME_STRIDE * (num_latents - 1), *picture.shape)
        clip[:, 0] = picture
        latents = self._codec.encode(clip)[0][0].transpose(0, 1)  # [C, t, h, w]
        mask = latents.new_zeros(MASK_CHANNELS, *latents.shape[1:])
        mask[:, 0] = 1
        self._counters.pictures_encoded += 1
        return torch.cat([mask, latents]).to(self._dtype)

    def forget(self) -> None:
        """Keep none."""
        self._kept.clear()
