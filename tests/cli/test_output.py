from __future__ import annotations

from argparse import Namespace

import pytest

from airflow_tf.cli import output

LONG = {"name": "n", "message": "x" * 150, "reason": "y" * 150}


def test_a_table_that_is_piped_is_not_cut(capsys):
    output.print_rows([LONG], "table")
    row = capsys.readouterr().out.splitlines()[2]
    assert row.split() == ["n", "|", LONG["message"], "|", LONG["reason"]]


def test_a_table_on_a_terminal_has_short_cells(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    output.print_rows([LONG], "table")
    assert LONG["message"] not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"), [("init", "airflow tf init"), ("checkpoints_ls", "airflow tf checkpoints ls")]
)
def test_a_file_that_cannot_be_written_is_one_line(tmp_path, name, words):
    def fail(_args):
        (tmp_path / "none" / "file").write_text("")

    fail.__name__ = name
    with pytest.raises(SystemExit) as caught:
        output.command(fail)(Namespace(subcommand=words.rpartition(" ")[2], verbose=False))
    assert caught.value.code == f"{words}: {tmp_path}/none/file: No such file or directory"
