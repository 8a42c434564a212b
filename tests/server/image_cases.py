"""The table: what may be sent as `image`, and the pixels or the refusal that must come back.

Each row stands in the file of its form. Wanted pixels are literals or arithmetic on what a file was made of; nothing
here calls the decoders that are tested.
"""

from tests.server import image_cases_files, image_cases_lists, image_cases_png, image_cases_text
from tests.server.image_case import Case

CASES: list[Case] = [
    *image_cases_text.CASES,
    *image_cases_lists.CASES,
    *image_cases_png.CASES,
    *image_cases_files.CASES,
]
