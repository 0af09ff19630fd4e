"""The rules of ``docker build`` that tests/e2e/image.py follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.keeper import CHECKOUT
from tests.e2e.compose import services_of
from tests.e2e.image import BuildFailed, Ignored, Image
from tests.e2e.platform import secrets_of_example


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("README.md", False),
        ("var/x", True),
        ("scripts/keeper.py", True),
        ("scripts/compose_init.py", False),
        ("rmq_store/lake/sql/sql.py", False),
        ("rmq_store/__pycache__/a.pyc", True),
        ("__pycache__/a.pyc", True),
    ],
)
def test_the_last_pattern_that_matches_decides_what_is_ignored(path: str, ignored: bool) -> None:
    lines = ["*", "!README.md", "!rmq_store", "!scripts/compose_init.py", "**/__pycache__"]
    assert (path in Ignored(lines)) == ignored


def test_what_the_context_lacks_cannot_be_copied(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("COPY a.txt secret.txt ./\n")
    (tmp_path / ".dockerignore").write_text("secret*\n")
    for name in ("a.txt", "secret.txt"):
        (tmp_path / name).write_text(name)
    with pytest.raises(BuildFailed, match=r'"/secret\.txt": not found'):
        Image.build(tmp_path, tmp_path / "image")


def test_the_scheduler_starts_once_the_api_server_answers() -> None:
    services = services_of(CHECKOUT / "docker-compose.yaml", secrets_of_example())
    assert services["scheduler"].after == {"apiserver"}
