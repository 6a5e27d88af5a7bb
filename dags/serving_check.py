"""Runs whenever serving.tf.yaml has published a version: the asset's event says where it is and how good it is."""

from __future__ import annotations

from airflow.sdk import DAG, Asset, ObjectStoragePath, task

MODEL = Asset("serving_model")  # <dag_id>_model where the base is a template, else the base itself

with DAG("serving_check", schedule=MODEL, tags=["example", "airflow_tf"]):

    @task
    def announce(triggering_asset_events=None) -> dict[str, object]:
        """Read what the newest event tells, and the version's manifest; a server would be told to load it."""
        event = triggering_asset_events[MODEL][-1].extra
        manifest = (ObjectStoragePath(event["uri"]) / "manifest.json").read_text()
        print(
            f"version {event['uri']} of step {event['step']}, metrics {event['metrics']}: load {event['saved_model']}"
        )
        return {"saved_model": event["saved_model"], "step": event["step"], "manifest_bytes": len(manifest)}

    announce()
