"""The models, as the server is to see them: links to the given repository, with settings changed for this run."""

from __future__ import annotations

from pathlib import Path

from launcher.options import Options
from launcher.told import ServeError


def parse_overrides(settings: list[str]) -> dict[str, dict[str, str]]:
    """["denoise.num_steps=2"] -> {"denoise": {"num_steps": "2"}}."""
    overrides: dict[str, dict[str, str]] = {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        model, dot, key = target.partition(".")
        if not (equals and dot and model and key):
            raise ServeError(f"--set: wanted MODEL.KEY=VALUE, got {setting!r}")
        overrides.setdefault(model, {})[key] = value
    return overrides


def override_config(path: Path, model: str, values: dict[str, str]) -> str:
    """The text of the config.pbtxt at path with its `parameters` changed; an unknown key is refused."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise ServeError(f"--set: model {model!r} has no {path.name} that can be read: {error}") from error
    for key, value in values.items():
        if key not in config.parameters:
            known = ", ".join(sorted(config.parameters)) or "none"
            raise ServeError(f"--set: model {model!r} has no parameter {key!r}; it has: {known}")
        config.parameters[key].string_value = value
    return str(text_format.MessageToString(config))


def served_repository(options: Options, workdir: Path) -> Path:
    """The repository that the options name, made ready in workdir.

    Raises:
        ServeError: with what of the options does not fit it.
    """
    repository = options.model_repository.resolve()
    if not repository.is_dir():
        raise ServeError(f"--model-repository: no folder {options.model_repository}")
    check_config_name(options.model_config_name, repository)
    return linked_repository(repository, options.set, options.model_config_name, workdir)


def linked_repository(repository: Path, settings: list[str], config_name: str, workdir: Path) -> Path:
    """A repository of links to the given one, whose changed config.pbtxt files are its own.

    It is served even where nothing changes: the server starts each model's process through a command line that falls
    apart where the repository's path holds a space.
    """
    overrides = parse_overrides(settings)
    models = sorted(path for path in repository.iterdir() if path.is_dir())
    unknown = overrides.keys() - {model.name for model in models}
    if unknown:
        raise ServeError(f"--set: no model {min(unknown)!r}; there are: {', '.join(model.name for model in models)}")
    copy = workdir / "models"
    for model in models:
        (copy / model.name).mkdir(parents=True)
        for entry in model.iterdir():
            (copy / model.name / entry.name).symlink_to(entry)
        if model.name in overrides:
            changed = override_config(config_of(model, config_name), model.name, overrides[model.name])
            # The server prefers a named configuration where there is one: leave it only the changed file.
            for name in ("config.pbtxt", "configs"):
                (copy / model.name / name).unlink(missing_ok=True)
            (copy / model.name / "config.pbtxt").write_text(changed, encoding="utf-8")
    return copy


def config_of(model: Path, config_name: str) -> Path:
    """The configuration that the server would take for a model."""
    named = model / "configs" / f"{config_name}.pbtxt"
    return named if config_name and named.is_file() else model / "config.pbtxt"


def check_config_name(name: str, repository: Path) -> None:
    """Refuse a configuration that no model has: Triton would serve the default one without a word.

    Raises:
        ServeError: with the names that there are.
    """
    names = sorted({file.stem for file in repository.glob("*/configs/*.pbtxt")})
    if name and name not in names:
        raise ServeError(f"--model-config-name: no model has a configuration {name!r}; there are: {', '.join(names)}")
