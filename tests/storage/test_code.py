"""Code that a run copies once: what is taken, what is left out, what is refused."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.storage import code as module
from airflow_tf.storage.code import known_snapshot, snapshot


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    for name, text in {"train.py": "print(1)", "lib/model.py": "x = 1", "notes/a.txt": "a"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(folder: str) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def zipped(path: Path, *entries: tuple[str | zipfile.ZipInfo, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in entries:
            archive.writestr(name, text)
    return path


def test_a_folder_is_copied_once_whatever_becomes_of_it(source: Path, tmp_path: Path) -> None:
    first = snapshot(source, tmp_path / "code")
    assert names(first.folder) == ["lib/model.py", "notes/a.txt", "train.py"]
    assert (first.files, first.bytes) == (3, 14)
    (source / "train.py").write_text("print(2)")
    (source / "new.py").touch()
    assert snapshot(source, tmp_path / "code") == first
    assert Path(first.folder, "train.py").read_text() == "print(1)"
    other = snapshot(source, tmp_path / "other")
    assert other.digest != first.digest


def test_the_digest_is_of_names_modes_and_contents_wherever_they_lie(source: Path, tmp_path: Path) -> None:
    archive = zipped(
        tmp_path / "a.zip", ("train.py", "print(1)"), ("lib/model.py", "x = 1"), ("notes/a.txt", "a"), ("lib/", "")
    )
    by_folder, by_archive = snapshot(source, tmp_path / "1"), snapshot(archive, tmp_path / "2")
    assert by_folder.digest == by_archive.digest
    (source / "train.py").chmod(0o755)
    made = snapshot(source, tmp_path / "3")
    assert made.digest != by_folder.digest
    assert os.access(Path(made.folder, "train.py"), os.X_OK)


def test_what_is_copied_cannot_be_written_by_mistake(source: Path, tmp_path: Path) -> None:
    made = snapshot(source, tmp_path / "code")
    assert stat.S_IMODE(Path(made.folder, "train.py").stat().st_mode) == 0o400


def test_what_git_ignores_is_left_out_as_git_decides(source: Path, tmp_path: Path) -> None:
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("*.secret\n")
    (tmp_path / ".gitignore").write_text("*.log\n/src/notes/\n*.tmp\n")
    (source / ".gitignore").write_text("data/\n!kept.tmp\n")
    (source / "lib" / ".gitignore").write_text("!*.log\n/model.py\n")
    for name in (
        "a.log",
        "lib/b.log",
        "data/c",
        "kept.tmp",
        "other.tmp",
        "k.secret",
        "__pycache__/x.pyc",
        "sub/model.py",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    made = snapshot(source, tmp_path / "code")
    assert names(made.folder) == [".gitignore", "kept.tmp", "lib/.gitignore", "lib/b.log", "sub/model.py", "train.py"]


def test_a_link_within_the_code_is_copied_as_the_file_that_it_leads_to(source: Path, tmp_path: Path) -> None:
    (source / "again.py").symlink_to("train.py")
    made = Path(snapshot(source, tmp_path / "code").folder, "again.py")
    assert not made.is_symlink()
    assert made.read_text() == "print(1)"


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "lib", "nowhere"])
def test_a_link_that_leads_out_or_to_a_folder_is_refused(source: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").touch()
    (source / "link").symlink_to(target)
    with pytest.raises(DeclarationError, match="is a link that leads to a folder or out of the code"):
        snapshot(source, tmp_path / "code")
    assert known_snapshot(source, tmp_path / "code") is None


@pytest.mark.parametrize("name", ["../x.py", "/x.py", "a/../../x.py", "a\\..\\x.py", "C:x.py"])
def test_a_path_that_leads_out_of_an_archive_is_refused(tmp_path: Path, name: str) -> None:
    archive = zipped(tmp_path / "a.zip", ("train.py", ""), (name, "evil"))
    with pytest.raises(DeclarationError, match="that leads out of it"):
        snapshot(archive, tmp_path / "home" / "code")
    assert not list(tmp_path.rglob("x.py"))
    assert [path for path in (tmp_path / "home" / "code").iterdir() if path.is_dir()] == []


def test_links_and_repeated_names_in_an_archive_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(DeclarationError, match=r"'link' in code .* is not a plain file"):
        snapshot(zipped(tmp_path / "a.zip", (link, "/etc/passwd")), tmp_path / "1")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = zipped(tmp_path / "b.zip", ("x", "1"), ("x", "2"))
    with pytest.raises(DeclarationError, match="two files 'x'"):
        snapshot(twice, tmp_path / "2")


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", ("train.py", "print(1)" * 1000))
    content = bytearray(archive.read_bytes())
    content[40] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(DeclarationError, match="cannot be unpacked"):
        snapshot(archive, tmp_path / "code")
    (tmp_path / "no.zip").write_text("text")
    with pytest.raises(DeclarationError, match=r"no\.zip cannot be unpacked"):
        snapshot(tmp_path / "no.zip", tmp_path / "code")


def test_too_much_is_refused_whatever_an_archive_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 2**20)
    bomb = zipped(tmp_path / "a.zip", ("zeros", "\0" * (2**20 + 1)))
    with pytest.raises(DeclarationError, match="is larger than 1 MiB"):
        snapshot(bomb, tmp_path / "code")
    monkeypatch.setattr(module, "MAX_FILES", 2)
    with pytest.raises(DeclarationError, match="has more than 2 files"):
        snapshot(zipped(tmp_path / "b.zip", ("1", ""), ("2", ""), ("3", "")), tmp_path / "code")
    assert [path for path in (tmp_path / "code").iterdir() if path.is_dir()] == []


def test_no_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="there is no code"):
        snapshot(tmp_path / "nowhere", tmp_path / "code")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DeclarationError, match="has no file"):
        snapshot(tmp_path / "empty", tmp_path / "code")


def test_who_asks_at_once_gets_the_same(source: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: snapshot(source, tmp_path / "code"), range(8)))
    assert len(set(found)) == 1
    assert len([path for path in (tmp_path / "code").iterdir() if path.is_dir()]) == 1


def overwrite(folder: str, name: str, content: bytes) -> None:
    path = Path(folder, name)
    path.chmod(0o600)
    path.write_bytes(content)
    path.chmod(0o400)


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setattr(module, "boot_id", lambda: name)


@pytest.mark.parametrize("keeps_note", [True, False])
def test_what_a_power_cut_took_from_a_copy_is_copied_again(
    source: Path, tmp_path: Path, boot: Callable[[str], None], *, keeps_note: bool
) -> None:
    boot("1")
    first, home = snapshot(source, tmp_path / "code"), tmp_path / "code"
    overwrite(first.folder, "train.py", b"")
    Path(first.folder, "lib", "model.py").unlink()
    if not keeps_note:
        next(home.glob("*.json")).unlink()
    boot("2")
    assert snapshot(source, home) == first
    assert Path(first.folder, "train.py").read_text() == "print(1)"
    assert names(first.folder) == ["lib/model.py", "notes/a.txt", "train.py"]
    assert len([path for path in home.iterdir() if path.is_dir()]) == 1


def test_a_copy_is_looked_through_once_in_each_boot(
    source: Path, tmp_path: Path, boot: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    boot("1")
    first = snapshot(source, tmp_path / "code")
    (source / "train.py").write_text("print(2)")
    Path(first.folder, "__pycache__").mkdir()
    boot("2")
    assert snapshot(source, tmp_path / "code") == first
    monkeypatch.setattr(module, "_is_whole", lambda *_: pytest.fail("looked again"))
    assert snapshot(source, tmp_path / "code") == first


def test_a_damaged_copy_of_code_that_has_changed_is_told(
    source: Path, tmp_path: Path, boot: Callable[[str], None]
) -> None:
    boot("1")
    first = snapshot(source, tmp_path / "code")
    overwrite(first.folder, "train.py", b"\0" * 8)
    (source / "train.py").write_text("print(2)")
    boot("2")
    with pytest.raises(DeclarationError, match="is damaged: as after a power cut, and the source is not what"):
        snapshot(source, tmp_path / "code")
    (source / "train.py").write_text("print(1)")
    assert snapshot(source, tmp_path / "code") == first
    assert Path(first.folder, "train.py").read_text() == "print(1)"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"snapshot": {}}'])
def test_a_note_that_cannot_be_read_is_written_anew_for_the_same_code_only(
    source: Path, tmp_path: Path, content: str
) -> None:
    home = tmp_path / "code"
    first = snapshot(source, home)
    note = next(home.glob("*.json"))
    note.write_text(content)
    assert known_snapshot(source, home) is None
    assert snapshot(source, home) == known_snapshot(source, home) == first
    note.write_text(content)
    (source / "train.py").write_text("print(2)")
    with pytest.raises(DeclarationError, match=str(note)):
        snapshot(source, home)
