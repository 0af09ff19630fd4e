"""The services of docker-compose.yaml, to start them without containers: on loopback, in a folder for the image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the file."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: tuple[str, ...]
    """The paths where volumes are mounted."""
    healthcheck: tuple[str, ...]
    """The words of its command; empty if the service has none."""


def services_of(file: Path, given: Mapping[str, str]) -> dict[str, Service]:
    """The services that run our image. ``given``: the variables of ``.env``. Raises KeyError for a missing one."""
    content = yaml.safe_load(_interpolated(file.read_text(), given))
    built = {name: service for name, service in content["services"].items() if service.get("build")}
    return {name: _service(name, service, content["volumes"]) for name, service in built.items()}


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
    """Translates addresses of the services' network to those on this host."""

    texts: Mapping[str, str]
    """From address or port in the network to address or port here."""

    def translate(self, text: str) -> str:
        pattern = "|".join(rf"(?<!\w){re.escape(address)}(?!\d)" for address in self.texts)
        return re.sub(pattern, lambda match: self.texts[match[0]], text)

    def translate_all(self, words: Sequence[str]) -> list[str]:
        return [self.translate(word) for word in words]
