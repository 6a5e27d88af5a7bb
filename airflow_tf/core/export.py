"""What an export program and its load test are told, and what the test leaves."""

from __future__ import annotations

EXPORT_VARIABLE = "AIRFLOW_TF_EXPORT_DIR"
"""Where an export program saves its SavedModel."""
SAMPLE_VARIABLE = "AIRFLOW_TF_EXPORT_SAMPLE"
"""Where it may save, as ``.npz``, what the signatures are tested with."""
SIGNATURES_FILE = "signatures.json"
"""In the folder of the load test: signature -> ``inputs`` and ``outputs`` -> name -> type and shape."""
