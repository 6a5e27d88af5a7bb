"""The kill matrix with a real Airflow and real processes: one test per cell of ``docs/kill_matrix.md``."""

from __future__ import annotations

import pytest

from tests.airflow.matrix.cells import Cell, Level, of_level
from tests.airflow.matrix.conftest import Matrix

pytestmark = [pytest.mark.airflow, pytest.mark.tensorflow, pytest.mark.slow]


@pytest.mark.parametrize("cell", of_level(Level.AIRFLOW), ids=lambda cell: cell.id)
def test_own_run(matrix: Matrix, cell: Cell) -> None:
    matrix.own(cell)


@pytest.mark.parametrize("cell", of_level(Level.SHARED), ids=lambda cell: cell.id)
def test_shared(matrix: Matrix, cell: Cell) -> None:
    matrix.shared(cell)
