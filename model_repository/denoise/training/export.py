"""From two finished runs to the files that are shipped: float16 weights, how they were made, a model card."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from string import Template
from typing import Any

import torch
from commands import RefusedError
from courtyard.dataset import CLIPS_PER_SHARD, RECIPE, VARIANT_NAMES, DatasetSpec
from courtyard.files import write_whole
from safetensors.torch import load_file, save_file
from workbench import file_sha256, read_log
from worldmodel.config import EMBEDDED, WorldConfig

WEIGHTS = Path(__file__).resolve().parents[1] / "1" / "weights"  # those that are shipped
CARD = Path(__file__).with_name("model_card.md")
RUNS = ("codec", "decoder", "world")
SHIPPED = {"decoder": "codec", "world": "transformer"}  # a run's name and the module whose weights it leaves
BEGAN = (
    "This last training did not begin at random,\nas `make train` does, but with the transformer that this repository "
    "shipped before (SHA-256\n`{}`; its history has it)."
)
EARLIER_CODEC = "The codec had learnt from earlier walks and\nlooks of the same place."
EVALUATION = "evaluation.json"
FACTS = "training.json"
NOT_FOR_OTHERS = ("cache", "name", "codec", "threads")  # settings that say nothing of the weights


def export_weights(cache: Path, folder: Path, config: WorldConfig = EMBEDDED) -> dict[str, Any]:
    """Write transformer.safetensors and codec.safetensors in float16, training.json and MODEL_CARD.md.

    Args:
        cache: where the runs `codec`, `decoder` and `world` are.
        folder: made if need be; what is there is replaced.

    Returns:
        What training.json says.

    Raises:
        RefusedError: a weight is not finite in float16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        f"{module}.safetensors": _write_half(cache / "runs" / run / f"{module}.safetensors", folder)
        for run, module in SHIPPED.items()
    }
    facts = {
        "dtype": "float16",
        "files": files,
        "world": dataclasses.asdict(config),
        "vocabulary": VARIANT_NAMES,
        "data": _data(cache, config),
        "runs": {run: _run_facts(cache / "runs" / run) for run in RUNS},
        "torch": torch.__version__,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    write_card(folder)
    return facts


def write_card(folder: Path) -> None:
    """Write MODEL_CARD.md from training.json and, if evaluation.json is of these very weights, from that."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    file = folder / EVALUATION
    evaluation = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    if evaluation and evaluation["weights_sha256"] != sha256_of(folder):
        evaluation = None
    (folder / "MODEL_CARD.md").write_text(model_card(facts, evaluation), encoding="utf-8")


def sha256_of(folder: Path) -> dict[str, str]:
    """Of each file of weights in a folder, by name."""
    return {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}


def model_card(facts: dict[str, Any], evaluation: dict[str, Any] | None) -> str:
    """The card of these weights, Markdown.

    Args:
        facts: what training.json says.
        evaluation: what evaluate.py says of them; None has the trainer's own figures instead.
    """
    codec, decoder, world = (facts["runs"][run] for run in RUNS)
    sizes, began = facts["files"], world["settings"].get("start_from")
    is_codec_earlier = codec["settings"].get("recipe") != facts["data"]["recipe"]
    beginnings = ([BEGAN.format(began)] if began else []) + ([EARLIER_CODEC] if is_codec_earlier else [])
    return Template(CARD.read_text(encoding="utf-8")).substitute(
        height=facts["world"]["height_px"],
        width=facts["world"]["width_px"],
        words=", ".join(f"`{word}`" for word in facts["vocabulary"]),
        num_clips=facts["data"]["clips"],
        world_clips=world["settings"].get("clips") or facts["data"]["clips"],
        frames_per_clip=facts["data"]["frames_per_clip"],
        codec_million=f"{sizes['codec.safetensors']['parameters'] / 1e6:.1f}",
        world_million=f"{sizes['transformer.safetensors']['parameters'] / 1e6:.1f}",
        megabytes=f"{sum(file['bytes'] for file in sizes.values()) / 1e6:.1f}",
        codec_steps=codec["steps"],
        decoder_steps=decoder["steps"],
        world_steps=world["steps"],
        codec_minutes=round(codec["trained_min"]),
        decoder_minutes=round(decoder["trained_min"]),
        world_minutes=round(world["trained_min"]),
        beginnings=" ".join(beginnings),
        device=world["settings"].get("device", "unknown"),
        quality=_evaluated(evaluation) if evaluation else _measured_in_training(decoder["measured"], world["measured"]),
        hashes="\n".join(f"| `{name}` | {file['bytes']} | `{file['sha256']}` |" for name, file in sizes.items()),
    )


def _evaluated(evaluation: dict[str, Any]) -> str:
    results = evaluation["results"]
    rows = {
        "streamed along the walk's poses": results["model_db"],
        "the first picture repeated": results["still_db"],
        "streamed along the walk's mirror image": results["mirrored_db"],
    }
    chunks = range(1, len(results["model_db"]) + 1)
    walks = [f"| chunk | {' | '.join(map(str, chunks))} |", "|---" * (len(chunks) + 1) + "|"]
    walks += [f"| {name} | {' | '.join(f'{value:.1f}' for value in row)} |" for name, row in rows.items()]
    bars = ["| | measured | wanted | |", "|---|---|---|---|"]
    for each in evaluation["wanted"]:
        verdict = "holds" if each["holds"] else "**missed**"
        bars.append(f"| {each['what']} | {each['value']:.4g} | {each['sense']} {each['bar']:g} | {verdict} |")
    intro = (
        f"`evaluate.py` on {results['clips']} held-out walks; `{EVALUATION}` has all of it. PSNR against the truth, dB:"
    )
    return "\n".join([intro, "", *walks, "", *bars])


def _measured_in_training(codec: dict[str, float], world: dict[str, float]) -> str:
    chunks = ", ".join(_decibel(world.get(f"chunk{number}_db")) for number in range(1, 9))
    return "\n".join([
        "As the trainer measured it on a few held-out walks; `evaluate.py --keep` measures much more.",
        "",
        "| PSNR against rendered truth | dB |",
        "|---|---|",
        f"| codec alone | {_decibel(codec.get('held_out_db'))} |",
        f"| streamed along the same poses, chunks 1 to 8 | {chunks} |",
        f"| the first picture repeated, from the fourth chunk on | {_decibel(world.get('still_db'))} |",
    ])  # fmt: skip


def _decibel(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f}"


def _write_half(source: Path, folder: Path) -> dict[str, Any]:
    tensors = {name: value.half().contiguous() for name, value in load_file(source).items()}
    wrong = [name for name, value in tensors.items() if not value.isfinite().all()]
    if wrong:
        raise RefusedError(f"{source.name}: not finite in float16: {', '.join(wrong)}")
    path = folder / source.name

    def write(unfinished: Path) -> None:
        save_file(tensors, unfinished)
        unfinished.chmod(0o644)  # safetensors lets nobody else read: a server may run as somebody else

    write_whole(path, write)
    parameters = sum(value.numel() for value in tensors.values())
    return {"sha256": file_sha256(path), "bytes": path.stat().st_size, "parameters": parameters}


def _data(cache: Path, config: WorldConfig) -> dict[str, Any]:
    spec = DatasetSpec("train", 0, height_px=config.height_px, width_px=config.width_px)
    shards = len(list((cache / "clips" / spec.name).glob("*.npy")))
    clips = {"recipe": RECIPE, "clips": shards * CLIPS_PER_SHARD, "frames_per_clip": spec.num_frames}
    return {**dataclasses.asdict(spec), **clips}


def _run_facts(folder: Path) -> dict[str, Any]:
    """Its settings, its length, and what was measured last on held-out walks."""
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    kept = {name: value for name, value in settings.items() if name not in NOT_FOR_OTHERS}
    lines = read_log(folder)
    last = lines[-1] if lines else {"step": 0, "trained_min": 0.0}
    measured: dict[str, float] = {}
    for line in lines:
        measured.update({name: value for name, value in line.items() if name.endswith("_db")})
    return {"settings": kept, "steps": last["step"], "trained_min": last["trained_min"], "measured": measured}
