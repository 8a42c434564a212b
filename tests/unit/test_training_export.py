"""What is shipped: the runs' weights in float16 as the server loads them, and how they were made."""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from worldmodel.config import EMBEDDED
from worldmodel.loading import Instance, load_world
from worldmodel.serving import ServingConfig

from tests.unit.worlds import TINY, tiny_world

TRAINING = Path(__file__).parents[2] / "model_repository" / "denoise" / "training"
sys.path.append(str(TRAINING))  # the scripts there import one another by name

import export  # noqa: E402
import train  # noqa: E402
from commands import RefusedError  # noqa: E402
from courtyard.dataset import RECIPE  # noqa: E402


@pytest.fixture
def cache(tmp_path):
    """Three runs that ended: a world of tiny size, its codec, and that codec's decoder."""
    world = tiny_world(seed=5)
    modules = {
        "codec": ("codec", tiny_world(seed=6).codec),
        "decoder": ("codec", world.codec),
        "world": ("transformer", world.transformer),
    }
    measured = {
        "codec": {"held_out_db": 29.0},
        "decoder": {"held_out_db": 31.25},
        "world": {"chunk1_db": 25.5, "chunk8_db": 17.5, "still_db": 11.0},
    }
    for run, (name, module) in modules.items():
        folder = tmp_path / "cache" / "runs" / run
        folder.mkdir(parents=True)
        tensors = {key: value.contiguous() for key, value in module.state_dict().items()}
        save_file(tensors, folder / f"{name}.safetensors")
        (folder / "settings.json").write_text(json.dumps({"seed": 0, "cache": "/somewhere", "device": "cpu"}))
        lines = [{"step": 10, "trained_min": 1.0, "loss": 1.0}, {"step": 20, "trained_min": 2.0, **measured[run]}]
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "cache"


def test_the_server_loads_what_was_exported(cache, tmp_path):
    trained = tiny_world(seed=5)
    export.export_weights(cache, tmp_path / "weights", TINY)
    served = load_world(TINY, ServingConfig(checkpoint="weights"), tmp_path, Instance("CPU", 0))
    for module in ("transformer", "codec"):
        wanted = getattr(trained, module).state_dict()
        for name, value in getattr(served, module).state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, wanted[name].half().float()), name


def test_training_json_has_hashes_sizes_and_settings_but_no_paths(cache, tmp_path):
    export.export_weights(cache, tmp_path / "weights", TINY)
    text = (tmp_path / "weights" / "training.json").read_text()
    facts = json.loads(text)
    for name, file in facts["files"].items():
        content = (tmp_path / "weights" / name).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        assert file["bytes"] == len(content)
    assert facts["vocabulary"] == ["day", "dusk", "night", "snow"]
    assert facts["runs"]["codec"]["steps"] == 20
    assert facts["runs"]["codec"]["measured"] == {"held_out_db": 29.0}
    assert "/somewhere" not in text


def test_the_card_says_what_was_measured(cache, tmp_path):
    facts = export.export_weights(cache, tmp_path / "weights", TINY)
    card = (tmp_path / "weights" / "MODEL_CARD.md").read_text()
    assert "| codec alone | 31.2 |" in card
    assert "25.5, not measured" in card
    assert facts["files"]["codec.safetensors"]["sha256"] in card
    assert "knows only this world" in card
    assert "$" not in card


def test_the_card_has_the_evaluation_of_these_weights_and_of_no_others(cache, tmp_path):
    folder = tmp_path / "weights"
    facts = export.export_weights(cache, folder, TINY)
    assert export.sha256_of(folder) == {name: file["sha256"] for name, file in facts["files"].items()}
    results = {"clips": 32, "model_db": [25.04, 22.0], "still_db": [18.0, 14.0], "mirrored_db": [17.0, 13.0]}
    bars = [
        {"what": "codec, dB", "value": 30.5, "sense": "at least", "bar": 30.0, "holds": True},
        {"what": "drift", "value": 9.0, "sense": "at most", "bar": 8.0, "holds": False},
    ]
    evaluation = {"weights_sha256": export.sha256_of(folder), "results": results, "wanted": bars}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))

    export.write_card(folder)
    card = (folder / "MODEL_CARD.md").read_text()
    assert "| chunk | 1 | 2 |\n|---|---|---|\n| streamed along the walk's poses | 25.0 | 22.0 |" in card
    assert "| drift | 9 | at most 8 | **missed** |" in card
    assert "As the trainer measured it" not in card

    (folder / "codec.safetensors").write_bytes(b"others")
    export.write_card(folder)
    assert "As the trainer measured it" in (folder / "MODEL_CARD.md").read_text()


def test_the_shipped_card_is_of_the_shipped_weights_and_figures(tmp_path):
    shipped = TRAINING.parent / "1" / "weights"
    for file in shipped.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    export.write_card(tmp_path)
    assert (tmp_path / "MODEL_CARD.md").read_text() == (shipped / "MODEL_CARD.md").read_text()
    facts = json.loads((shipped / "training.json").read_text())
    assert facts["world"] == json.loads(json.dumps(dataclasses.asdict(EMBEDDED)))
    digests = {name: file["sha256"] for name, file in facts["files"].items()}
    assert digests == export.sha256_of(shipped)
    assert json.loads((shipped / "evaluation.json").read_text())["weights_sha256"] == digests


def test_the_card_names_the_weights_that_a_training_began_with(cache, tmp_path):
    settings = cache / "runs" / "world" / "settings.json"
    settings.write_text(json.dumps({"seed": 0, "device": "cpu", "start_from": "0123abcd"}))
    export.export_weights(cache, tmp_path / "weights", TINY)
    card = (tmp_path / "weights" / "MODEL_CARD.md").read_text()
    assert "with the transformer that this repository shipped before (SHA-256\n`0123abcd`; its history has it)." in card


def test_the_card_says_where_the_codec_learnt_from_other_walks(cache, tmp_path):
    settings = cache / "runs" / "codec" / "settings.json"
    for recipe, is_told in ((RECIPE, False), ("v0", True)):
        settings.write_text(json.dumps({"seed": 0, "recipe": recipe}))
        export.export_weights(cache, tmp_path / recipe, TINY)
        card = (tmp_path / recipe / "MODEL_CARD.md").read_text()
        assert ("The codec had learnt from earlier walks" in card) == is_told


def test_weights_that_do_not_fit_float16_are_refused_by_name(cache, tmp_path):
    file = cache / "runs" / "decoder" / "codec.safetensors"
    tensors = {name: value.contiguous() for name, value in tiny_world().codec.state_dict().items()}
    tensors["latent_mean"] = torch.full_like(tensors["latent_mean"], 1e6)
    save_file(tensors, file)
    with pytest.raises(RefusedError, match=r"^codec\.safetensors: not finite in float16: latent_mean"):
        export.export_weights(cache, tmp_path / "weights", TINY)


def test_weights_that_are_served_are_replaced_by_whole_ones(cache, tmp_path, monkeypatch):
    def broken_off(tensors, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    folder = tmp_path / "weights"
    digests = {name: file["sha256"] for name, file in export.export_weights(cache, folder, TINY)["files"].items()}
    monkeypatch.setattr(export, "save_file", broken_off)
    with pytest.raises(KeyboardInterrupt):
        export.export_weights(cache, folder, TINY)
    assert export.sha256_of(folder) == digests
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.safetensors")} == {0o644}


def arguments(*given):
    """What each stage of a whole training is called with."""
    return {name[4:]: stage.args[0] for name, stage in train._stages(train._options(list(given)))}


def test_minutes_are_shared_out_and_steps_are_the_default():
    by_steps, by_minutes = arguments("--world-steps", "7"), arguments("--minutes", "100")
    assert by_steps["the world"][-2:] == ["--steps", "7"]
    assert by_minutes["the codec"][-2:] == ["--minutes", "30.0"]
    assert by_minutes["its decoder, further"][-2:] == ["--minutes", "10.0"]
    assert by_minutes["the world"][-2:] == ["--minutes", "60.0"]
    assert "held_out" in by_steps["walks to measure with"]


def test_the_world_learns_from_as_many_walks_as_are_asked_for_whatever_else_is_rendered():
    asked = arguments("--clips", "48")
    for name in ("walks to learn from", "the world"):
        assert asked[name][asked[name].index("--clips") + 1] == "48"


def test_a_stopped_training_says_so_and_exports_nothing(tmp_path, monkeypatch, capsys):
    def stopped(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(train.render_dataset, "main", stopped)
    assert train.main(["--weights", str(tmp_path / "weights")]) == 130
    assert "goes on from here" in capsys.readouterr().err
    assert not (tmp_path / "weights").exists()


def test_the_prompt_words_to_serve_are_the_looks_that_were_rendered():
    # weights/README.md names them for EMBEDDED.vocabulary.
    assert export.VARIANT_NAMES == ("day", "dusk", "night", "snow")
