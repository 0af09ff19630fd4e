"""The services of docker-compose.yaml, as they are started here: natively, on loopback, in a folder for the image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Service:
    """``healthcheck``: the words of its command, empty: it has none. ``volumes``: the places where volumes are mounted."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: tuple[str, ...]
    healthcheck: tuple[str, ...]


def services_of(file: Path, given: Mapping[str, str]) -> dict[str, Service]:
    """Those that run our image. ``given``: what ``.env`` says. Raises KeyError for a variable that is missing there."""
    content = yaml.safe_load(_interpolated(file.read_text(), given))
    ours = {name: service for name, service in content["services"].items() if service.get("build")}
    return {name: _service(name, service, content["volumes"]) for name, service in ours.items()}


def _service(name: str, words: Mapping[str, Any], volumes: Mapping[str, Any]) -> Service:
    mounts = [mount.split(":") for mount in words.get("volumes", ())]
    assert {source for source, _ in mounts} <= set(volumes), f"{name}: a volume that is not declared"
    kind, *check = words.get("healthcheck", {}).get("test", ("CMD",))
    assert kind == "CMD", f"{name}: a healthcheck in the form CMD needs no shell"
    environment = {key: str(value) for key, value in words["environment"].items()}
    return Service(name, tuple(words["command"]), environment, tuple(place for _, place in mounts), tuple(check))


def _interpolated(text: str, given: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, kind, default = match.groups()
        if kind == "?" and not given.get(name):
            raise KeyError(f"{name}: {default}")
        return given.get(name) or (default if kind == "-" else "")

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Loopback:
    """What is said in a service's network, as it must be said on this host."""

    texts: Mapping[str, str]

    def here(self, text: str) -> str:
        pattern = "|".join(rf"(?<!\w){re.escape(said)}(?!\d)" for said in self.texts)
        return re.sub(pattern, lambda match: self.texts[match[0]], text)

    def all(self, words: Sequence[str]) -> list[str]:
        return [self.here(word) for word in words]
