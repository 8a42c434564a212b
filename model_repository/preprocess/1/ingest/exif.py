"""The one thing that is read from EXIF: which side of the picture is up.

Read here and not by Pillow, which reads far more, warns about what does not matter and looks into XMP as well.
"""

import struct

_ORIENTATION_TAG, _SHORT = 0x0112, 3
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ENTRY_BYTES = 12


def exif_orientation(exif: bytes | None) -> int:
    """Give EXIF's orientation, 1 (upright) to 8, from its first directory.

    Damaged EXIF counts as none: the pixels beside it are whole.
    """
    tiff = (exif or b"").removeprefix(b"Exif\0\0")
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for index in range(num_entries):
            tag, kind, count, value = struct.unpack_from(f"{order}HHIH", tiff, directory + 2 + index * _ENTRY_BYTES)
            if tag == _ORIENTATION_TAG:
                return value if (kind, count) == (_SHORT, 1) and 1 <= value <= 8 else 1
    except struct.error:
        pass  # cut short before the tag came
    return 1
