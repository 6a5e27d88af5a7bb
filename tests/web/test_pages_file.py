"""The built file of the pages: that it belongs to its sources, and names what the plugin announces."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import airflow_tf.web
from airflow_tf.plugin import AirflowTfPlugin
from airflow_tf.web import PAGES_FILE

ROOT = Path(__file__).resolve().parents[2]
UI = ROOT / "ui"
BUILT = (Path(airflow_tf.web.__file__).parent / PAGES_FILE).read_text(encoding="utf-8")


def digest(texts):
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def test_it_is_built_from_these_sources_and_not_edited():
    head, body = BUILT.split("\n", 1)
    told = re.search(r"sources (\w+) bundle (\w+)", head)
    names = sorted(["build.mjs", "package-lock.json", *(f"src/{path.name}" for path in (UI / "src").iterdir())])
    assert told is not None
    assert told[2] == digest([body]), f"{PAGES_FILE} was edited: npm run build in ui"
    assert told[1] == digest((UI / name).read_text(encoding="utf-8") for name in names), "npm run build in ui"


def test_every_announced_page_is_in_it_under_a_route_of_its_own():
    pages = AirflowTfPlugin().react_apps
    assert len({page["url_route"] for page in pages}) == len(pages)
    assert {page["bundle_url"] for page in pages} == {f"airflow_tf/{PAGES_FILE}"}
    given = re.search(r"Object\.assign\(globalThis,\{([^}]*)\}", BUILT)
    assert given is not None
    assert {part.partition(":")[0] for part in given[1].split(",")} == {page["name"] for page in pages}


def test_its_packages_are_locked_by_their_content_and_not_by_an_address():
    lock = json.loads((UI / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert [name for name, package in packages.items() if "integrity" not in package or "resolved" in package] == []
