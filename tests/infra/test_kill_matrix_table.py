"""The documented kill matrix is the tested one."""

from __future__ import annotations

from tests.airflow.matrix import cells


def test_the_document_lists_exactly_the_cells_that_are_tested() -> None:
    assert cells.document_tables() == cells.tables(), "run: python -m tests.airflow.matrix.cells"


def test_every_cell_has_its_own_name_and_a_described_event() -> None:
    names = [cell.id for cell in cells.CELLS]
    assert len(set(names)) == len(names)
    assert {cell.event for cell in cells.CELLS} == {event.name for event in cells.EVENTS}


def test_every_event_covers_all_phases_or_says_why_not() -> None:
    for event in cells.EVENTS:
        phases = {cell.phase for cell in cells.of_event(event.name)}
        assert phases <= set(cells.PHASES)
        assert phases == set(cells.PHASES) or event.others, event.name
