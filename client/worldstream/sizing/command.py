"""The command `worldstream plan`: words and a table; the arithmetic is in `plan`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from worldstream.errors import InvalidInputError
from worldstream.sizing.plan import DEFAULT_BUDGET, DEFAULT_RESERVE_BYTES, Plan, parse_bytes, plan_world, tell_bytes
from worldstream.sizing.worlds import WORLDS, check_settings, read_config, with_parameters

_Config: TypeAlias = Annotated[str, typer.Argument(help=f"{', '.join(WORLDS)}, or a config.pbtxt of denoise.")]
_Settings: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE: a model parameter, as serve.py's --set denoise.KEY=VALUE.")
]
_Memory: TypeAlias = Annotated[str | None, typer.Option(help="Of the GPU, such as 80GiB or 141GB.")]
_Reserve: TypeAlias = Annotated[
    str | None, typer.Option(help="Of it, for what is not counted: context, kernels, other models; default 1GiB.")
]
_AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One line of JSON.")]

_BUDGET = "session_budget_bytes"
_LINES = (
    ("transformer", "transformer_bytes"),
    ("codec", "codec_bytes"),
    ("text encoder", "text_encoder_bytes"),
    ("conditioner, held for a chunk", "conditioner_held_bytes"),
    ("activations, estimated", "activation_bytes"),
    ("picture cache", "picture_cache_bytes"),
    ("reserve", "reserve_bytes"),
    ("in all, without sessions", "fixed_bytes"),
    ("a session", "session_bytes"),
    ("  keys and values of its window", "window_bytes"),
    ("  of its prompt", "text_bytes"),
    ("  picture latents", "condition_bytes"),
    ("  codec memory", "codec_memory_bytes"),
    ("  past latents", "history_bytes"),
    ("host: /dev/shm", "shm_bytes"),
)


def plan(
    config: _Config,
    settings: _Settings = None,
    memory: _Memory = None,
    reserve: _Reserve = None,
    as_json: _AsJson = False,
) -> None:
    """Count a world's bytes, and how many sessions fit a GPU. Needs no server."""
    made = make_plan(config, settings or [], memory, reserve)
    if as_json:
        typer.echo(json.dumps(made.to_dict()))
        return
    table = Table(f"{made.configuration}, {made.dtype}", "size", "bytes", box=None)
    table.columns[1].justify = table.columns[2].justify = "right"
    for label, name in _LINES:
        num_bytes = getattr(made, name)
        table.add_row(
            f"codec, {made.codec}" if name == "codec_bytes" else label, tell_bytes(num_bytes), f"{num_bytes:,}"
        )
    Console().print(table)
    for line in closing_lines(made):
        typer.echo(line)


def make_plan(config: str, settings: list[str], memory: str | None, reserve: str | None) -> Plan:
    """What the command's arguments say.

    Raises:
        InvalidInputError: one of them cannot be right.
    """
    name, parameters = read_config(config)
    chosen = dict(_setting(each) for each in settings)
    check_settings(chosen)
    world = with_parameters(WORLDS[name], {**parameters, **chosen})
    return plan_world(
        name,
        world,
        None if memory is None else parse_bytes("--memory", memory),
        DEFAULT_RESERVE_BYTES if reserve is None else parse_bytes("--reserve", reserve),
        _budget_source(config, parameters, chosen),
    )


def _budget_source(config: str, parameters: Mapping[str, str], chosen: Mapping[str, str]) -> str:
    if chosen.get(_BUDGET):
        return "--set"
    return Path(config).name if parameters.get(_BUDGET) else DEFAULT_BUDGET


def closing_lines(made: Plan) -> list[str]:
    """How many sessions there may be, in words."""
    budget = (
        f"{_BUDGET} {made.session_budget_bytes} ({made.budget_source}) admits {_sessions(made.budget_sessions)}"
        f" of {tell_bytes(made.session_bytes)}"
    )
    if made.budget_source == DEFAULT_BUDGET:
        budget += f"; a config.pbtxt in place of the name, or --set {_BUDGET}=BYTES, says another"
    if made.memory_bytes is None or made.free_bytes is None or made.sessions is None:
        return [budget]
    memory = tell_bytes(made.memory_bytes)
    if made.sessions == 0:
        lacking = tell_bytes(made.session_bytes - made.free_bytes)
        return [budget, f"{memory}: no session fits, {lacking} are lacking"]
    fit = f"{memory}: {_sessions(made.sessions)} fit; set session_budget_bytes to {made.sessions * made.session_bytes}"
    return [budget, fit if made.sessions != 1 else fit.replace(" fit;", " fits;")]


def _sessions(number: int) -> str:
    return "1 session" if number == 1 else f"{number} sessions"


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidInputError(f"--set: wanted KEY=VALUE, got {text!r}")
    return key.removeprefix("denoise."), value
