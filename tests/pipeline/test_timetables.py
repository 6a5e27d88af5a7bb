"""Schedules of declarations, through real DAG objects, as Airflow stores them and as its scheduler reads them back."""

from __future__ import annotations

import datetime as dt

import pytest
from airflow import plugins_manager
from airflow.sdk import timezone
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from airflow_tf.pipeline.build import load_dag
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline.declarations import changed, write

START = timezone.datetime(2026, 3, 2)  # a Monday


class Weekly(CronTriggerTimetable):
    """A timetable as a plugin registers it."""

    def __init__(self, day: int = 1) -> None:
        super().__init__(f"0 6 * * {day}", timezone="UTC")
        self.day = day

    def serialize(self):
        return {"day": self.day}

    @classmethod
    def deserialize(cls, data):
        return cls(**data)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(plugins_manager, "get_timetables_plugins", lambda: {f"{__name__}.Weekly": Weekly})


def first_run(tmp_path, schedule):
    """Return when the scheduler would start the first run, from what Airflow stores of the DAG."""
    dag = load_dag(write(tmp_path, changed('"@daily"', schedule)))
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    restriction = TimeRestriction(earliest=START, latest=None, catchup=True)
    info = stored.timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
    return info.run_after


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ('"@daily"', "2026-03-02T00:00:00+00:00"),
        ('"0 4 * * *"', "2026-03-02T04:00:00+00:00"),
        ('{timetable: CronTriggerTimetable, expression: "0 4 * * *"}', "2026-03-02T04:00:00+00:00"),
        ('{timetable: CronTriggerTimetable, expression: "0 4 * * *", timezone: Europe/Berlin}', "2026-03-02T03:00:00+00:00"),
        ('{timetable: CronDataIntervalTimetable, expression: "0 4 * * *"}', "2026-03-03T04:00:00+00:00"),
        ('{timetable: MultipleCronTriggerTimetable, crons: ["0 9 * * *", "0 8 * * *"]}', "2026-03-02T08:00:00+00:00"),
        ("{timetable: DeltaDataIntervalTimetable, delta: 6h}", "2026-03-02T06:00:00+00:00"),
        ("{timetable: DeltaTriggerTimetable, delta: 6h, interval: 1h}", "2026-03-02T00:00:00+00:00"),
        ('{timetable: CronTriggerTimetable, expression: "0 4 * * *", assets: [hdfs://nn/a]}', "2026-03-02T04:00:00+00:00"),
    ],
)  # fmt: skip
def test_the_scheduler_starts_runs_by_it(tmp_path, schedule, expected):
    assert first_run(tmp_path, schedule).isoformat() == expected


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["Weekly", f"{__name__}.Weekly"])
def test_a_timetable_that_a_plugin_has_registered_is_known_by_its_name(tmp_path, name):
    assert first_run(tmp_path, f"{{timetable: {name}, day: 3}}") == dt.datetime(2026, 3, 4, 6, tzinfo=dt.UTC)


def test_assets_beside_a_timetable_start_runs_too(tmp_path):
    text = changed('"@daily"', "{timetable: CronTriggerTimetable, expression: '@daily', assets: [hdfs://nn:8020/a/]}")
    timetable = load_dag(write(tmp_path, text)).timetable
    assert [asset.uri for asset in timetable.asset_condition.objects] == ["hdfs://nn:8020/a"]


def test_it_is_the_same_at_every_parse(tmp_path):
    text = changed('"@daily"', "{timetable: CronTriggerTimetable, expression: '@daily', assets: [hdfs://nn:8020/a]}")
    stored = [DagSerialization.to_dict(load_dag(write(tmp_path, text)))["dag"]["timetable"] for _ in range(2)]
    assert stored[0] == stored[1]


def test_a_data_interval_ends_where_the_next_begins(tmp_path):
    dag = load_dag(write(tmp_path, changed('"@daily"', "{timetable: DeltaDataIntervalTimetable, delta: 6h}")))
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    last = DataInterval(START, START + dt.timedelta(hours=6))
    info = stored.timetable.next_dagrun_info(
        last_automated_data_interval=last, restriction=TimeRestriction(START, None, catchup=True)
    )
    assert info.data_interval == DataInterval(last.end, last.end + dt.timedelta(hours=6))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("{timetable: CronTrigerTimetable}", "there is no timetable 'CronTrigerTimetable'. Did you mean \"CronTriggerTimetable\"?"),
        ("{timetable: 3}", "there is no timetable 3"),
        ("{cron: '@daily'}", "there is no timetable None"),
        ("{timetable: CronTriggerTimetable}", "CronTriggerTimetable does not take these arguments: "),
        ("{timetable: CronTriggerTimetable, expression: '61 * * * *'}", "61 * * * *"),
        ("{timetable: CronTriggerTimetable, expression: '@daily', timezone: Mars/Base}", "there is no time zone 'Mars/Base'"),
        ("{timetable: CronTriggerTimetable, expression: '@daily', timezone: 3}", "there is no time zone 3"),
        ("{timetable: DeltaTriggerTimetable, delta: 2 moons}", "'2 moons' is not a duration"),
        ("{timetable: MultipleCronTriggerTimetable, crons: 3}", "MultipleCronTriggerTimetable does not take these arguments"),
        ("{timetable: Weekly, weekday: 3}", "It is Weekly(day: 'int' = 1)"),
        ("{timetable: CronTriggerTimetable, expression: '@daily', assets: x}", "'x' is no list of asset URIs"),
        ("[3]", "[3] is no list of asset URIs"),
        ("{}", "{} is not a schedule. Write a cron expression, a preset"),
    ],
)  # fmt: skip
def test_what_is_no_schedule_is_an_error_of_the_declaration(tmp_path, schedule, message):
    with pytest.raises(InvalidDeclarationError) as caught:
        load_dag(write(tmp_path, changed('"@daily"', schedule)))
    assert "churn.tf.yaml:2:1: schedule: " in str(caught.value)
    assert message in str(caught.value)
