"""Keras' ``fit`` in sync: repaired, still needed, and refused where it cannot be right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState
from tests.supervisor.harness import Gang

SYNC: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 2}, "kill_grace_seconds": 0.5}
FIT = """
import keras, tensorflow as tf
from airflow_tf import runtime
PATCH
strategy = runtime.strategy()
x = tf.random.stateless_normal((256, 4), seed=(1, 2))
data = tf.data.Dataset.from_tensor_slices((x, tf.linalg.matvec(x, [1., 2., 3., 4.])[:, None])).batch(64)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
history = model.fit(data, epochs=15, verbose=0).history
evaluated = model.evaluate(data, verbose=0)
print("result", [round(v, 5) for v in model.get_weights()[0].ravel().tolist() + history["loss"][-1:]], flush=True)
print("evaluated", round(evaluated[0], 5), flush=True)
"""

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("no_processes_left")]


def start(make_gang: Callable[..., Gang], patch: str = "") -> list[Any]:
    gang = make_gang(count=2, start_method="zygote")
    return [gang.start(FIT.replace("PATCH", patch), replica=number, **SYNC) for number in range(2)]


def test_fit_and_evaluate_train_one_model_on_two_workers(make_gang: Callable[..., Gang]) -> None:
    watches = start(make_gang)
    assert {watch.end(120).state for watch in watches} == {AttemptState.SUCCEEDED}, watches[0].lines
    first, second = (json.loads(watch.line("result ")) for watch in watches)
    assert first == second, "weights and losses"
    assert first[:4] == pytest.approx([1, 2, 3, 4], abs=0.05)
    assert float(watches[0].line("evaluated ")) < 0.01


def test_keras_still_needs_the_repair(make_gang: Callable[..., Gang]) -> None:
    watches = start(make_gang, "runtime.keras_fit.repair = lambda: None")
    outcomes = [watch.end(120) for watch in watches]
    states = {outcome.state for outcome in outcomes}
    assert states == {AttemptState.FAILED}, "Keras fits on several workers now: remove runtime/keras_fit.repair"
    assert any("PerReplica" in outcome.message for outcome in outcomes), outcomes  # of the one that failed first


def test_an_untried_keras_is_refused_with_the_reason(make_gang: Callable[..., Gang]) -> None:
    watches = start(make_gang, "keras.__version__ = '9.1.0'")
    message = watches[0].end(120).message
    assert "Keras 9.1 cannot fit a model on several processes" in message
    assert "tf-keras" in message
