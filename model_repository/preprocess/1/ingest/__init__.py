"""The image entrance: bytes or JSON in, UINT8 RGB arrays out.

Knows every form in which a client may send a picture, and nothing of Triton, torch or the world model. Data flows:
`request` -> `element` (which form is it?) -> `base64text`, `pixel_lists`, `pictures` -> `colour` -> `fit` -> `digest`.
"""

from ingest.errors import IngestError, InvalidInputError, TooLargeError
from ingest.limits import Limits
from ingest.request import Pictures, continues_session, read_images

__all__ = [
    "IngestError",
    "InvalidInputError",
    "Limits",
    "Pictures",
    "TooLargeError",
    "continues_session",
    "read_images",
]
