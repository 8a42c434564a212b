"""A prompt's token vectors in its place, on the real server: through `denoise` and `world`, at the start and later."""

import base64
import itertools
from typing import Any

import numpy as np
import pytest
from worldmodel.config import EMBEDDED
from worldmodel.prompt import HashedWords

from tests.server.events import post
from tests.server.raw import Array, ask, join, make_request, picture, png, settled_metrics
from tests.server.test_denoise_errors import assert_refused

pytestmark = pytest.mark.server

IDS = itertools.count(1)
SIZES = EMBEDDED.transformer
WORDS = HashedWords(SIZES.text_len, SIZES.text_dim)
PICTURE = picture()
STARTS = {"denoise": {"pixels": PICTURE}, "world": {"image": png(PICTURE)}}


def by_text(text: str) -> dict[str, Any]:
    return {"prompt": text}


def by_vectors(text: str) -> dict[str, Any]:
    return {"prompt_embeds": WORDS.encode(text)}


def session(server: Any, model: str, prompted: Any) -> list[Array]:
    """The frames of a start, of a switch through `model`, of another that holds for the past, and of an end."""
    name = f"embeds-{next(IDS)}"
    requests = (
        (model, {**STARTS[model], **prompted("night"), "actions": ["w", "w", "wl"]}, {"sequence_start": True}),
        (model, {**prompted("snow"), "num_chunks": 2}, {}),
        ("denoise", {**prompted("dusk day"), "actions": ["l"]}, {"recache": True}),
        ("denoise", {"num_chunks": 1}, {"sequence_end": True}),
    )
    return [
        join(ask(server.grpc, make_request(to, inputs, sequence_id=name, **parameters)))
        for to, inputs, parameters in requests
    ]


@pytest.mark.parametrize("model", ["denoise", "world"])
def test_vectors_give_byte_for_byte_the_frames_of_their_words(server: Any, model: str) -> None:
    wanted = session(server, model, by_text)
    for frames, each in zip(session(server, model, by_vectors), wanted, strict=True):
        np.testing.assert_array_equal(frames, each)
    plain = join(ask(server.grpc, make_request(model, {**STARTS[model], "actions": ["w", "w", "wl"]})))
    assert not np.array_equal(plain, wanted[0])


def test_vectors_that_do_not_fit_are_refused_by_name(server: Any) -> None:
    rows = np.zeros((SIZES.text_len + 1, SIZES.text_dim), np.float32)
    wrong = (
        ({"prompt_embeds": rows}, "TOO_LARGE", f"wanted at most {SIZES.text_len} rows"),
        ({"prompt_embeds": rows[:2, 1:]}, "INVALID_INPUT", f"wanted [n, {SIZES.text_dim}]"),
        ({"prompt_embeds": rows[:2] + np.inf}, "INVALID_INPUT", "row 0: a number is not finite"),
        ({**by_text("day"), **by_vectors("day")}, "INVALID_INPUT", "wanted prompt or prompt_embeds, got both"),
    )
    for inputs, code, message in wrong:
        answer = ask(server.grpc, make_request("denoise", {"pixels": PICTURE, **inputs}))
        assert_refused(answer, code, "prompt_embeds: ", message)


def test_a_list_in_a_json_body_is_one_row(server: Any) -> None:
    body = {
        "image": base64.b64encode(png(PICTURE)).decode(),
        "prompt_embeds": WORDS.encode("day night").reshape(-1).tolist(),
    }
    status, [event] = post(server, body)
    assert status == 400
    assert "prompt_embeds: wanted [n, 32], this world's token vectors, got [1, 64]" in event["error"]


def test_a_server_without_a_text_encoder_takes_vectors_alone(server: Any, start_server: Any) -> None:
    other = start_server(overrides={"denoise.text_encoder": "none"})
    refused = ask(other.grpc, make_request("denoise", {"pixels": PICTURE, **by_text("night")}))
    assert_refused(refused, "INVALID_INPUT", "prompt: this server has no text encoder; wanted prompt_embeds")
    started = make_request("denoise", {"pixels": PICTURE, **by_vectors("night")})
    frames = [join(ask(each.grpc, started)) for each in (server, other)]
    np.testing.assert_array_equal(*frames)


def test_a_prompt_that_comes_again_is_counted_as_a_hit(server: Any) -> None:
    before = settled_metrics(server.metrics)
    for _ in range(3):
        ask(server.grpc, make_request("denoise", {"pixels": PICTURE, **by_text("a prompt of its own")}))
    after = settled_metrics(server.metrics)
    grown = {name: after[name] - before[name] for name in ("prompts_encoded_total", "prompt_cache_hits_total")}
    assert grown == {"prompts_encoded_total": 1, "prompt_cache_hits_total": 2}
