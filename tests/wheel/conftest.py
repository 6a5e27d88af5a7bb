"""The wheel, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wheel.building import uv


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--quiet", "--wheel", "--out-dir", folder)
    [found] = folder.glob("*.whl")
    return found
