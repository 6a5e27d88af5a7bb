"""Train one replica of a gang."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from airflow_tf.hooks.links import PlacementLink, TensorBoardLink, TrainingLink, show_links
from airflow_tf.hooks.telemetry import measured
from airflow_tf.operators.replica import ReplicaOperator


class TensorFlowTrainOperator(ReplicaOperator):
    """Run one replica of a TensorFlow program on its own device, under a supervisor that outlives this task.

    Map it over literal replica numbers: ``.partial(…).expand(replica=[0, 1, 2, 3])``; each instance looks after one
    process. It takes the devices that a :class:`DeviceAvailabilitySensor` reserved for this task, and reserves its
    own where there are none (``airflow tasks test``, a cleared task).

    ``arguments``, ``environment`` and ``session_config`` may use ``{{ replica.index }}``, ``{{ replica.count }}`` and
    ``{{ inputs.<name> }}`` besides Airflow's variables.

    :param entrypoint: path of a script (relative to the DAG file) or ``module:function``.
    :param count: replicas of the gang; by default the number of mapped instances.
    :param strategy: ``independent``; ``sync``, ``async`` or ``v1_cluster`` (gangs: started, restarted and ended
        together); or ``towers`` (one process with all devices).
    :param roles: of a gang, ``chief``, ``worker``, ``ps`` -> number of replicas; by default all are workers.
    :param success: ``all``, ``chief`` or ``{"at_least": n}``: which replicas must succeed. Another one that fails ends
        skipped; give the aggregation the trigger rule ``none_failed_min_one_success`` then.
    :param start_timeout: time within which a program must start, and the members of a gang must have joined it.
    :param progress_timeout: a program that gets no further for so long is ended with the stacks of all its threads
        in its output, as a failure that ``restarts`` may cure. Progress is a reported step or a change of a
        checkpoint's files; of a program that reports no steps, output. By default none is ended for this.
    :param evaluator_grace: time that an evaluator has for the last checkpoint when the training has ended.
    :param memory_limit: most memory of the host that a replica may use. Refused where cgroups are not delegated.
    :param initial_checkpoint: ``{"source": uri, "hdfs_conn_id": …}`` of the checkpoint to begin with: a prefix, a
        published version, or ``<base>/latest``. Or ``{"from_task": aggregation, "evaluation_task": …, "metric": …,
        "mode": …}``: what another training of the run has made, on this host.
    :param upload: ``{"destination": base URI, "hdfs_conn_id": …, "every": duration}``: while it trains, the newest
        checkpoint is copied there; a host that has none of this run begins with it.
    :param fresh: every attempt begins with that or from scratch, never with what an earlier attempt has saved.
    :param allow_from_scratch: begin from scratch where checkpoints exist but cannot be read, or none is published.
    :param inputs: name -> ``{"source": uri, "hdfs_conn_id": …, "shard": way | None, "require_success": bool,
        "digest": …, "staged_as": …}``, staged if they are not; with the ``digest`` of the staging task's XCom nothing
        else is taken. ``staged_as`` is that task's ``input_name``, where it is not the name.
    :param session_config: TensorFlow's ``ConfigProto`` by its own field names, with parts for ``chief``, ``worker``,
        ``ps`` or ``evaluator``; or the name of a file with it (``.yaml``, ``.json``, ``.pbtxt``, perhaps with ``.j2``
        after it), relative to the DAG file, which is rendered for each replica.
    :param api: ``tf2``, ``v1`` or ``auto``: which kind of program the session config must reach.
    :param code: a folder or a zip file, relative to the DAG file, that is copied once per run; the entrypoint is then
        looked for in the copy, and imports come from its top.
    :param working_directory: where the program begins: absolute, or relative to the code, without which it is relative
        to the DAG file. By default a folder of its own in the run's.
    :param python: the training interpreter, by default Airflow's own.
    :param start_method: ``zygote`` (fork after one import of TensorFlow) or ``spawn``.
    :param restarts: how often the supervisor starts a killed replica again within one try.
    :param kill_grace_seconds: time between SIGTERM and SIGKILL, for a last checkpoint.
    :param kwargs: what is asked of the devices, in the same words as of the sensor
        (:class:`airflow_tf.hooks.devices.DeviceSeeker`), and Airflow's own arguments.
    :param deferrable: wait in the triggerer while the program runs, and hold no slot.
    :param execution_timeout: as in Airflow, but counted once over tries that attach to the same process and over
        deferrals.
    :param device_timeout: how long to wait for devices, if this task must reserve its own.
    :return: XCom with checkpoint prefix, metrics, device and attempts.
    """

    ui_color = "#f6c85f"
    operator_extra_links = (TrainingLink(), TensorBoardLink(), PlacementLink())

    def execute(self, context: Context) -> dict[str, Any]:
        """Show where one looks on; stage what is missing, take the devices, look after the replica to its end."""
        show_links(self, context["ti"])
        return super().execute(context)

    def _run(self, context: Context) -> dict[str, Any]:
        with measured("train", context) as step:
            step.tell(replica=self.replica)
            return super()._run(context)
