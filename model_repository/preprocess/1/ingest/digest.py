"""A name for a picture's content, for clients' own caches and logs."""

import hashlib
import struct

import numpy as np

from ingest.colour import Pixels


def image_digest(pixels: Pixels) -> str:
    """Give 32 hex characters: BLAKE2b-128 of height, width, 3 (uint32, little endian), then the RGB bytes."""
    digest = hashlib.blake2b(struct.pack("<3I", *pixels.shape), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()
