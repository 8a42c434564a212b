"""Image cases: pixel lists, good and bad. Peers' reports 7, 14, 15, 19 and 21 are among them."""

import json
import random

from tests.server.image_case import Case, gives, gray, refused

SEEDED = random.Random(4)
BIG = [[[SEEDED.randrange(256) for _ in range(3)] for _ in range(31)] for _ in range(17)]

ACCEPTED = [
    gives("list of whole numbers", "[[[0,1,2],[253,254,255]]]", pixels=[[[0, 1, 2], [253, 254, 255]]]),
    gives("list of many random numbers", json.dumps(BIG), pixels=BIG),
    gives("list without spaces, compact", json.dumps(BIG, separators=(",", ":")), pixels=BIG),
    gives("list written over many lines", json.dumps(BIG, indent=2), pixels=BIG),
    gives("list with every JSON space", " \t\r\n[ [\t[ 1\r,\n2 ,3 ] ]\n]\n ", pixels=[[[1, 2, 3]]]),
    gives("list of gray", "[[7,200],[0,255]]", pixels=gray([[7, 200], [0, 255]])),
    gives("list of gray, three wide, is not a row of colours", "[[1,2,3]]", pixels=gray([[1, 2, 3]])),
    gives("list of one gray pixel", "[[9]]", pixels=gray([[9]])),
    # 200 * 128 / 255 = 100.4, 255 * 128 / 255 = 128, 10 * 128 / 255 = 5.02; on black.
    gives(
        "list of RGBA",
        "[[[200,255,10,128],[9,8,7,255],[9,8,7,0]]]",
        pixels=[[[100, 128, 5], [9, 8, 7], [0, 0, 0]]],
    ),
    gives("list of floats", "[[[0.0,0.25,1.0]]]", pixels=[[[0, 64, 255]]]),  # 63.75
    gives("list of float gray", "[[0.5,1.0]]", pixels=gray([[128, 255]])),
    # 0.5 * 255 = 127.5 -> 128; then as above: 255 * 128 / 255, 128 * 128 / 255 = 64.25
    gives("list of float RGBA", "[[[1.0,0.5,0,0.5]]]", pixels=[[[128, 64, 0]]]),
    gives("list of whole zeros and ones is nearly black", "[[[0,1,0],[1,1,1]]]", pixels=[[[0, 1, 0], [1, 1, 1]]]),
    gives("list of floats that starts 0 and 1", "[[[0,1,0],[1,1,1.0]]]", pixels=[[[0, 255, 0], [255, 255, 255]]]),
    gives("list of floats by an exponent alone", "[[[0,1,1e0]]]", pixels=[[[0, 255, 255]]]),
    gives("list of floats by a capital exponent alone", "[[1,0],[0,1E-0]]", pixels=gray([[255, 0], [0, 255]])),
    # 2.55, 25.5 and 0.255
    gives("list with exponents", "[[[1e-2,1.0E-1,0.1e-2]]]", pixels=[[[3, 26, 0]]]),
    # x 255 these are 25.5, 76.5, 127.5, 178.5, 229.5: half to even would give 76, 178 and 128.
    gives("list of halves is rounded up", "[[0.1,0.3,0.5,0.7,0.9]]", pixels=gray([[26, 77, 128, 179, 230]])),
    # 0.5/255 is 0.001960784...: on either side of it.
    gives("list on both sides of the first half", "[[0.0019607,0.0019608]]", pixels=gray([[0, 1]])),
    # 254.5/255 is 0.998039215...
    gives("list on both sides of the last half", "[[0.9980392,0.9980393]]", pixels=gray([[254, 255]])),
    # Adding 0.5 to the double before 0.5 / 255 * 255 and cutting would lift it to 1.
    gives("list just below the first half", "[[0.0019607843137254897]]", pixels=gray([[0]])),
    gives("list with minus zero", "[[[-0.0,0.0,-0e0]]]", pixels=[[[0, 0, 0]]]),
    gives("list with a number below all doubles", "[[1e-400]]", pixels=gray([[0]])),
    gives("list with very many digits", "[[0.5" + "0" * 400 + ",1." + "0" * 400 + "]]", pixels=gray([[128, 255]])),
]

# Text of the list -> the place in it that the message must name.
PLACES = {
    "ragged rows": ("[[[1,2,3],[4,5,6]],[[1,2,3]]]", "ragged", "row 1"),
    "ragged rows, the later one longer": ("[[[1,2,3]],[[1,2,3],[4,5,6]]]", "ragged", "row 1"),
    "ragged pixels": ("[[[1,2,3],[4,5]]]", "ragged", "row 0, column 1"),
    "ragged where rows' totals agree": ("[[[1,2,3],[4,5],[6,7,8,9]]]", "ragged", "row 0, column 1"),
    "ragged where the whole total agrees": ("[[1,2],[3,4,5],[6]]", "ragged", "row 1"),
    "ragged between RGB and RGBA": ("[[[1,2,3],[1,2,3,4]]]", "ragged", "row 0, column 1"),
    "ragged gray": ("[[1,2,3],[4,5]]", "ragged", "row 1"),
    "mixed depth, a number among pixels": ("[[[1,2,3],4]]", "mixed depth", "row 0, column 1"),
    "mixed depth, a pixel among numbers": ("[[1,[2,3,4]]]", "mixed depth", "row 0, column 1"),
    "mixed depth, a list in a pixel": ("[[[1,2,[3]]]]", "mixed depth", "row 0, column 0, channel 2"),
    "mixed depth, a row that is a number": ("[[[1,2,3]],4]", "mixed depth", "row 1"),
    "a boolean in the first pixel": ("[[[1,true,0]]]", "row 0, column 0, channel 1", "a boolean"),
    "a boolean after the first pixel": ("[[[1,2,3],[1,2,false]]]", "row 0, column 1, channel 2", "a boolean"),
    "NaN": ("[[[0.5,NaN,0.5]]]", "row 0, column 0, channel 1", "NaN"),
    "Infinity": ("[[0.5,Infinity]]", "row 0, column 1", "Infinity"),
    "minus Infinity": ("[[0.5],[-Infinity]]", "row 1, column 0", "Infinity"),
    "null": ("[[[1,2,3]],[[null,2,3]]]", "row 1, column 0, channel 0", "null"),
    "a number as a string": ('[[[1,"2",3]]]', "row 0, column 0, channel 1", "a string"),
    "strings in place of pictures": ('["AA==","AA=="]', "row 0", "a string"),
    "an object": ('[[{"r":1,"g":2,"b":3}]]', "row 0, column 0", "an object"),
    "-1": ("[[[1,2,3],[-1,2,3]]]", "row 0, column 1, channel 0", "0-255", "-1"),
    "256": ("[[[1,2,256]]]", "row 0, column 0, channel 2", "0-255", "256"),
    "256 in the last of many": (json.dumps([*BIG[:-1], [*BIG[-1][:-1], [1, 2, 256]]]), "row 16, column 30, channel 2"),
    "65535, as of 16 bits": ("[[0,65535]]", "row 0, column 1", "65535"),
    "1e400": ("[[[0.1,1e400,0]]]", "row 0, column 0, channel 1"),
    "a whole number of 30 digits": ("[[1,2],[" + "9" * 30 + ",3]]", "row 1, column 0"),
    "a float over 1": ("[[[0.5,0.5,1.0001]]]", "row 0, column 0, channel 2", "[0, 1]"),
    "a float below 0": ("[[[0.5,-1e-9,0]]]", "row 0, column 0, channel 1", "[0, 1]"),
    "bytes among floats": ("[[[255,128,1.0]]]", "row 0, column 0, channel 0", "[0, 1]", "255"),
    "a byte with an exponent": ("[[[1,0,1e2]]]", "row 0, column 0, channel 2", "[0, 1]", "100"),
    "an empty list": ("[]", "the whole list", "empty"),
    "an empty row": ("[[]]", "row 0", "empty"),
    "an empty pixel": ("[[[]]]", "row 0, column 0", "empty"),
    "an empty second row": ("[[[1,2,3]],[]]", "row 1"),
    "one level": ("[1,2,3]", "H x W x 3", "came 3"),
    "two channels": ("[[[1,2],[3,4]]]", "H x W x 3", "1 x 2 x 2"),
    "five channels": ("[[[1,2,3,4,5]]]", "H x W x 3", "1 x 1 x 5"),
    "four levels": ("[[[[1,2,3]]]]", "H x W x 3", "1 x 1 x 1 x 3"),
    # Channels first, as PyTorch has them.
    "channels first": (json.dumps([[[0] * 8] * 8] * 3), "H x W x 3", "3 x 8 x 8"),
    "a leading zero": ("[[[1,02,3]]]", "row 0, column 0, channel 1"),
    "a plus sign": ("[[[1,+2,3]]]", "row 0, column 0, channel 1"),
    "a bare fraction": ("[[.5]]", "row 0, column 0"),
    "a bare point": ("[[1.]]", "row 0, column 0"),
    "a hexadecimal number": ("[[0x10]]", "row 0, column 0", "0x78"),
    "trailing text": ("[[[1,2,3]]] x", "0x78"),
    "a trailing list": ("[[1]][[2]]", "valid JSON"),
    "a trailing bracket": ("[[[1,2,3]]]]", "valid JSON"),
    "a trailing comma": ("[[[1,2,3,]]]", "valid JSON"),
    "a missing comma": ("[[[1,2,3 4]]]", "valid JSON"),
    "a missing comma, two numbers seeming left": ("[[[1,2 3]]]", "valid JSON"),
    "a missing bracket": ("[[[1,2,3]]", "valid JSON"),
    "a list that is cut": ("[[[1,2", "valid JSON"),
    "a NUL byte behind": ("[[[1,2,3]]]\0", "0x00"),
    "Python's tuples": ("[[(1,2,3)]]", "row 0, column 0", "0x28"),
    "a comment": ("[[1]] // gray", "0x2f"),
}
REFUSED = [refused(f"list with {name}", text, words=["image[0]", *words]) for name, (text, *words) in PLACES.items()]
# A place at a great depth took time by the square of the depth to find, and 788 KB to name.
DEEP = [
    refused(f"list with {name} after 40 000 brackets", text, words=["levels of JSON, came 40000"], code="TOO_LARGE")
    for name, text in {
        "a boolean": "[" * 40_000 + "t",
        "nothing": "[" * 40_000,
        "numbers, a boolean": "[1," * 40_000 + "t",
        "an object's end": '{"a":' + "[" * 40_000 + "}",
        "numbers, an object's end": '{"a":' + "[1," * 40_000 + "}",
    }.items()
]

CASES: list[Case] = ACCEPTED + REFUSED + DEEP
