"""The application mounted by Airflow's API server: read only, and closed to whoever has not signed in."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from airflow_tf.cli.devices import device_rows
from airflow_tf.core.errors import AirflowTfError
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.ledger.read import LedgerReader, RunRow
from airflow_tf.web import PAGES_FILE, training
from airflow_tf.web.access import MAY_READ_CLUSTER, MAY_READ_TASKS, SIGNED_IN, ReadableDags
from airflow_tf.web.curves import Cursor
from airflow_tf.web.devices import devices_page
from airflow_tf.web.models import Curves, TrainingPage
from airflow_tf.web.shared import Shared

LOOK_SECONDS = 2.0
"""How long one look at this host's devices serves all who ask, at least."""
MAX_CURVES = 16
RunId = Annotated[str, Query(min_length=1)]
_PAGES = Path(__file__).with_name(PAGES_FILE)


@cache
def _reader() -> LedgerReader:
    """Open the ledger at the first request: the API server forks its workers before."""
    return LedgerReader(open_ledger(load_settings()))


def _answer(request: Request, page: BaseModel) -> Response:
    """Return what a page shows, or 304 where the asking side has it as it is."""
    return _tagged(request, page.model_dump_json().encode(), "application/json")


def _tagged(request: Request, body: bytes, media_type: str) -> Response:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def make_app() -> FastAPI:
    """Return the application; every route asks for a login, and for more where it shows more."""
    app = FastAPI(title="airflow_tf", dependencies=[SIGNED_IN], docs_url=None, redoc_url=None, openapi_url=None)
    rows = Shared(lambda: device_rows(_reader(), load_settings()), LOOK_SECONDS)

    @app.get(f"/{PAGES_FILE}")
    def pages(request: Request) -> Response:
        return _tagged(request, _PAGES.read_bytes(), "text/javascript")

    @app.get("/devices", dependencies=[MAY_READ_CLUSTER])
    def devices(request: Request, readable: ReadableDags) -> Response:
        reader = _reader()
        return _answer(request, devices_page(reader.hosts(), rows(), reader.reservations(), reader.queue(), readable))

    @app.get("/dags/{dag_id}/training", dependencies=[MAY_READ_TASKS])
    def run_page(request: Request, dag_id: str, run_id: RunId, task_id: str | None = None) -> Response:
        reader = _reader()
        gangs = training.Run(dag_id, run_id, task_id).gangs(reader)
        return _answer(request, TrainingPage(gangs=[training.training(reader, gang) for gang in gangs]))

    @app.get("/dags/{dag_id}/training/{key}/curves", dependencies=[MAY_READ_TASKS])
    def curves(
        request: Request,
        dag_id: str,
        key: str,
        run_id: RunId,
        after: Annotated[list[str], Query(max_length=MAX_CURVES)],
    ) -> Response:
        run, folder = _gang(dag_id, run_id, key)
        return _answer(request, Curves(curves=training.curves(run, folder, _cursors(after))))

    @app.get("/dags/{dag_id}/training/{key}/replicas/{replica}", dependencies=[MAY_READ_TASKS])
    def details(request: Request, dag_id: str, key: str, run_id: RunId, replica: int) -> Response:
        run, folder = _gang(dag_id, run_id, key)
        found = training.details(run, folder, replica)
        if found is None:
            raise HTTPException(404, f"replica {replica} is not known")
        return _answer(request, found)

    @app.get("/dags/{dag_id}/placement", dependencies=[MAY_READ_TASKS])
    def placement(dag_id: str, run_id: RunId, task_id: str, replica: int) -> Response:
        return JSONResponse(_placement(training.Run(dag_id, run_id, task_id), replica))

    @app.exception_handler(AirflowTfError)
    def explain(_request: Request, error: AirflowTfError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503)

    return app


def _cursors(after: list[str]) -> list[tuple[int, Cursor]]:
    """Return replica and cursor of each ``replica:cursor``."""
    parts = [each.partition(":") for each in after]
    return [(int(replica), Cursor.parse(text)) for replica, _, text in parts if replica.isdecimal()]


def _placement(asked: training.Run, replica: int) -> dict[str, Any]:
    """Return the placement report of a replica, of the newest gang that has one."""
    for run in asked.gangs(_reader()):
        folder = training.readable_folder(run)
        found = training.placement(run, folder, replica) if folder is not None else {}
        if found:
            return found
    raise HTTPException(404, "no report of this replica is here: it is written when an attempt ends, on its host")


def _gang(dag_id: str, run_id: str, key: str) -> tuple[RunRow, Path]:
    """Return a gang of this run, whose DAG the user may read, and its folder."""
    run = training.Run(dag_id, run_id).gang(_reader(), key)
    if run is None:
        raise HTTPException(404, "this run has no such training")
    folder = training.readable_folder(run)
    if folder is None:
        raise HTTPException(404, "the run folder cannot be read by this API server: it is on another host, or removed")
    return run, folder
