"""Makes a SavedModel of the checkpoint that will be published, and says with what it is to be tested."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf  # noqa: TID253 (a training program)
from model import Line

line = Line()
tf.train.Checkpoint(line=line).restore(os.environ["AIRFLOW_TF_RESUME_FROM"]).assert_consumed()
tf.saved_model.save(line, os.environ["AIRFLOW_TF_EXPORT_DIR"], signatures={"serving_default": line.predict})
np.savez(os.environ["AIRFLOW_TF_EXPORT_SAMPLE"], x=np.float32([-1.0, 0.0, 1.0]))
