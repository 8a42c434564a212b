"""Raw tensors against literal bytes."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from worldstream import ProtocolError
from worldstream.tensors import add_array, add_strings, read_outputs


def response_of(datatype, shape, contents):
    response = service_pb2.ModelInferResponse(raw_output_contents=[contents])
    response.outputs.add(name="value", datatype=datatype, shape=shape)
    return response


def test_numbers_are_written_little_endian_in_row_order():
    request = service_pb2.ModelInferRequest()

    add_array(request, "size", np.array([[1, 2], [3, 256]], dtype=np.int32)[:, ::-1])

    assert request.raw_input_contents[0] == b"\2\0\0\0\1\0\0\0\0\1\0\0\3\0\0\0"
    assert (request.inputs[0].name, request.inputs[0].datatype) == ("size", "INT32")
    assert list(request.inputs[0].shape) == [2, 2]


def test_strings_are_written_after_their_lengths():
    request = service_pb2.ModelInferRequest()

    add_strings(request, "actions", [b"wl", b"", b"s\0"])

    assert request.raw_input_contents[0] == b"\2\0\0\0wl\0\0\0\0\2\0\0\0s\0"
    assert (request.inputs[0].datatype, list(request.inputs[0].shape)) == ("BYTES", [3])


def test_numbers_are_read_without_a_copy_and_cannot_be_written():
    outputs = read_outputs(response_of("INT64", [2, 1], b"\1\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"))

    assert outputs["value"].tolist() == [[1], [-1]]
    assert not outputs["value"].flags.owndata
    assert not outputs["value"].flags.writeable


def test_strings_are_read_with_their_zero_bytes():
    outputs = read_outputs(response_of("BYTES", [2], b"\2\0\0\0a\0\0\0\0\0"))

    assert outputs["value"].tolist() == [b"a\0", b""]


@pytest.mark.parametrize(
    ("datatype", "shape", "contents", "complaint"),
    [
        ("FP32", [2], b"\0" * 4, r"value: FP32 \[2\] needs 8 bytes, 4 came"),
        ("FP64", [1], b"\0" * 8, "value: datatype FP64 is none of"),
        ("BYTES", [1], b"\5\0\0\0ab", r"value: the bytes do not hold \[1\] elements"),
        ("BYTES", [2], b"\1\0\0\0a", r"value: the bytes do not hold \[2\] elements"),
        ("BYTES", [1], b"\0\0\0", r"value: the bytes do not hold \[1\] elements"),
    ],
)
def test_bytes_that_do_not_fill_their_shape_are_refused(datatype, shape, contents, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        read_outputs(response_of(datatype, shape, contents))


def test_a_response_without_raw_contents_is_refused():
    response = response_of("UINT8", [1], b"\0")
    del response.raw_output_contents[:]

    with pytest.raises(ProtocolError, match="1 outputs but 0 raw contents"):
        read_outputs(response)
