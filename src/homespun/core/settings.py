"""Typed settings: one small class per concern. An unknown key is an error that names the nearest match.

The docstring below a field describes the setting; `homespun settings` and docs/settings.md show it. If the method's
paper states a value, the annotation holds it:

    local_steps: Annotated[PositiveInt, Paper(10)] = 10
    '''Gradient steps that a client takes in a round.'''
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from homespun.core.errors import SettingsError, nearest, raise_faults

# Names of settings before version 0.2. Older runs, experiments and scripts are still read.
RENAMED = {
    "base": "base_model",
    "common_rate": "common_lr",
    "embedding_rate": "embedding_lr",
    "head_rate": "head_lr",
    "home_pace": "personalize_lr_factor",
    "home_steps": "personalize_steps",
    "inner": "base_settings",
    "keeps": "private_update",
    "map_rate": "map_lr",
    "model_rate": "model_lr",
    "of": "base_method",
    "over": "row_denominator",
    "own_rate": "own_lr",
    "personal_rate": "personal_lr",
    "personalize_rate": "personalize_lr",
    "proximal": "mu",
    "rate": "lr",
    "sends": "upload_rows",
    "server_rate": "server_lr",
    "statistics_clip": "metrics_clip",
    "triplet_rate": "triplet_lr",
    "user_rate": "user_lr",
}


class RenamedSettingWarning(FutureWarning):
    """A setting was given by its former name."""


def current_names(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Replace former names of settings by the current ones in `known`, with a warning."""
    found = {}
    for name, value in values.items():
        new = RENAMED.get(name, name)
        if name not in known and new in known and new not in values:  # unknown names and duplicates are reported later
            warnings.warn(f"the setting {name!r} is now called {new!r}", RenamedSettingWarning, stacklevel=2)
            found[new] = value
        else:
            found[name] = value
    return found


def stored_settings(values: Any) -> Any:
    """Replace former names in settings that were written to disk, without a warning."""
    if not isinstance(values, dict):
        return values
    return {RENAMED.get(name, name): stored_settings(value) for name, value in values.items()}


def current_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Replace former names of settings in the identity of a run on disk."""
    groups = ("method_settings", "run")
    return {name: stored_settings(value) if name in groups else value for name, value in identity.items()}


class Settings(BaseModel):
    """Base class of all settings: immutable; unknown keys are errors.

    Example:
        >>> class Mine(Settings):
        ...     lr: float = 0.1
        >>> Mine(lr=0.5).lr
        0.5
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    # Fields that were added after runs were written to disk. Their defaults keep the earlier behaviour, so they are
    # left out of the identity of a run while they have their defaults.
    added_later: ClassVar[tuple[str, ...]] = ()
    # Fields that change how a run is evaluated, not how it is trained. They are not part of its identity.
    evaluation_only: ClassVar[tuple[str, ...]] = ()
    # Fields that change personalization, not what rounds train: `homespun compare` trains runs once that differ in
    # these only.
    personalization_only: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _current_names(cls, values: Any) -> Any:
        return current_names(values, cls.model_fields) if isinstance(values, Mapping) else values

    def identity(self) -> dict[str, Any]:
        """Return the values that identify a run."""
        found = self.model_dump(mode="json")
        unset = {name for name in self.added_later if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in found.items() if name not in unset | set(self.evaluation_only)}

    def evaluation(self) -> dict[str, Any]:
        """Return the values that change the evaluation only."""
        return self.model_dump(mode="json", include=set(self.evaluation_only))


@dataclass(frozen=True)
class Paper:
    """The value that the method's paper states for a setting, or a short text if it states several.

    Example:
        >>> from typing import Annotated
        >>> class Mine(Settings):
        ...     local_steps: Annotated[int, Paper(10)] = 5
        >>> Mine().local_steps
        5
    """

    value: Any


AnySettings = TypeVar("AnySettings", bound=Settings)


def parse(
    kind: type[AnySettings], values: Mapping[str, Any], *, where: str, listed_by: str | None = None
) -> AnySettings:
    """Validate plain values and return the settings; all faults are reported together, by name.

    `listed_by` is the command that lists all settings. Without it, the error for an unknown name lists them.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise_faults(SettingsError, where, [_fault(kind, dict(item), listed_by) for item in error.errors()])


def _fault(kind: type[Settings], item: Mapping[str, Any], listed_by: str | None) -> str:
    name = ".".join(str(part) for part in item["loc"]) or "settings"
    if item["type"] == "extra_forbidden":
        *groups, _ = map(str, item["loc"])
        known = sorted(".".join([*groups, one]) for one in group_of(kind, groups).model_fields)
        return unknown_setting(name, known, listed_by=listed_by)
    message = item["msg"].removeprefix("Value error, ")
    got = f" (got {item['input']!r})" if item["loc"] else ""  # omitted if the fault concerns several settings
    return f"{name}: {message[0].lower()}{message[1:]}{got}"


def unknown_setting(name: str, known: Sequence[str], *, listed_by: str | None) -> str:
    """Return the error message for an unknown setting."""
    rest = f"Known: {', '.join(known)}." if listed_by is None else f"`{listed_by}` lists all settings."
    if RENAMED.get(name) in known:
        return f"{name!r} is given beside its new name: it is now called {RENAMED[name]!r}. Give one of them."
    return f"unknown setting {name!r}.{nearest(name, known)} {rest}"


def group_of(kind: type[BaseModel], groups: Sequence[str]) -> type[BaseModel]:
    """Return the settings class of a nested group; the keys of tables on the way are chosen by the user."""
    for group in groups:
        field = kind.model_fields.get(group)
        if field is not None:
            kind = settings_class(field.annotation) or _class_in_table(field.annotation) or kind
    return kind


def settings_class(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class of a field, if the field is a group of settings."""
    if get_origin(annotation) in (dict, list, tuple):
        return None
    options = (annotation, *get_args(annotation))
    return next((one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _class_in_table(annotation: Any) -> type[BaseModel] | None:
    return settings_class(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`["lr=0.1", "privacy.clip=1"]` as nested values; a value that is not valid TOML is text."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise SettingsError(f"override {override!r} is not of the form name=value, for instance lr=0.1")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        *groups, name = key.strip().split(".")
        nested = values
        for group in groups:
            nested = nested.setdefault(group, {})
            if not isinstance(nested, dict):
                raise SettingsError(f"override {override!r}: {group} was already set as a whole")
        nested[name] = value
    return values
