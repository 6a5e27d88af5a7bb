"""Causes of failures from texts as TensorFlow, CUDA, cuDNN, NCCL and Python write them."""

from __future__ import annotations

import signal

import pytest

from airflow_tf.core.causes import Evidence, classify
from airflow_tf.core.states import ExitCause

OOM_GPU = (
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
    "shape[25088,4096] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Add]"
)
OOM_CPU = OOM_GPU.replace("device:GPU:0 by allocator GPU_0_bfc", "device:CPU:0 by allocator cpu")
CUDA_OOM_LOG = (
    "2021-09-24 16:22:13.020179: I tensorflow/stream_executor/cuda/cuda_driver.cc:801] failed to allocate 7.81G "
    "(8387559424 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
)
ECC = (
    "F tensorflow/stream_executor/lib/statusor.cc:34] Attempting to fetch value instead of handling error Internal: "
    "failed initializing StreamExecutor for CUDA device ordinal 0: Internal: failed call to cuDevicePrimaryCtxRetain: "
    "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"
)
CUDNN = (
    "E0000 00:00:1738697930.202924    7665 cuda_dnn.cc:522] Loaded runtime CuDNN library: 9.1.0 but source was "
    "compiled with: 9.3.0.  CuDNN library needs to have matching major version and equal or higher minor version."
)
CUDNN_ERROR = (
    "tensorflow.python.framework.errors_impl.FailedPreconditionError: DNN library initialization failed. "
    "Look at the errors above for more details."
)
DRIVER = (
    "tensorflow.python.framework.errors_impl.InternalError: cudaGetDevice() failed. Status: CUDA driver version is "
    "insufficient for CUDA runtime version"
)
PORT = "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server"
HEARTBEAT = (
    "tensorflow.python.framework.errors_impl.UnavailableError: The following tasks are unhealthy (stopped sending "
    "heartbeats): /job:worker/replica:0/task:1"
)
REFUSED = (
    "tensorflow.python.framework.errors_impl.UnavailableError: failed to connect to all addresses; last error: "
    "UNKNOWN: ipv4:127.0.0.1:2222: Failed to connect to remote host: Connection refused"
)
WAITING = (
    "2018-11-09 12:28:53.2: I tensorflow/core/distributed_runtime/master.cc:267] CreateSession still waiting for "
    "response from worker: /job:worker/replica:0/task:1"
)
NCCL = (
    "tensorflow.python.framework.errors_impl.InternalError: Graph execution error: NCCL: unhandled system error. "
    "Set NCCL_DEBUG=WARN for detail. [[node Adam/NcclAllReduce]]"
)
DLOPEN = (
    "W0000 gpu_device.cc:2344] Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned "
    "above are installed properly if you would like to use GPU.\nSkipping registering GPU devices..."
)
NO_GPU_OP = (
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: Cannot assign a device for operation MatMul: "
    "Operation was explicitly assigned to /device:GPU:0 but available devices are [ /device:CPU:0 ]."
)
ABORT = "2019-02-21: F tensorflow/core/common_runtime/gpu/gpu_event_mgr.cc:274] Unexpected Event status: 1"


def raised(line: str, before: str = "") -> str:
    return f'{before}\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\n    fit()\n{line}\n'


@pytest.mark.parametrize(
    ("exit_code", "output", "cause", "text"),
    [
        (1, raised(OOM_GPU), ExitCause.CUDA_OOM, "OOM when allocating tensor with shape[25088,4096]"),
        (1, raised(OOM_CPU), ExitCause.HOST_OOM, "the host's memory did not suffice"),
        (1, raised(OOM_GPU.partition(": ")[0] + ": failed to allocate memory [Op:AddV2]"), ExitCause.CUDA_OOM, "GPU"),
        (-signal.SIGABRT, f"{CUDA_OOM_LOG}\n{ABORT}", ExitCause.CUDA_OOM, "CUDA_ERROR_OUT_OF_MEMORY"),
        (1, raised("MemoryError"), ExitCause.HOST_OOM, "MemoryError"),
        (
            1,
            raised("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.0 TiB for an array"),
            ExitCause.HOST_OOM,
            "8.0 TiB",
        ),
        (-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", ExitCause.HOST_OOM, "bad"),
        (-signal.SIGABRT, ECC, ExitCause.DEVICE_LOST, "uncorrectable ECC error"),
        (1, raised(CUDNN_ERROR, CUDNN), ExitCause.USER_ERROR, "cuDNN does not match"),
        (1, raised(DRIVER), ExitCause.USER_ERROR, "newer driver"),
        (1, raised(PORT), ExitCause.RENDEZVOUS, "port of its server was taken"),
        (1, raised(REFUSED), ExitCause.RENDEZVOUS, "did not find each other"),
        (-signal.SIGABRT, WAITING, ExitCause.RENDEZVOUS, "task:1"),
        (1, raised(NCCL), ExitCause.RENDEZVOUS, "NCCL_DEBUG=WARN"),
        (1, raised(NO_GPU_OP, DLOPEN), ExitCause.USER_ERROR, "tensorflow[and-cuda]"),
        (1, raised("OSError: [Errno 28] No space left on device: 'ck'"), ExitCause.USER_ERROR, "a disk is full"),
        # the program got over what its log speaks of, and failed by its own error
        (
            1,
            raised("ValueError: no such column", CUDA_OOM_LOG),
            ExitCause.USER_ERROR,
            "exit code 1: ValueError: no such column (train.py, line 3)",
        ),
        (1, raised("OSError: [Errno 98] Address already in use"), ExitCause.USER_ERROR, "exit code 1"),
        # ... or raised something of its own because of it
        (
            1,
            raised(OOM_GPU)
            + "\nThe above exception was the direct cause of the following exception:\n\n"
            + raised("RuntimeError: training failed"),
            ExitCause.CUDA_OOM,
            "OOM when",
        ),
        (
            1,
            raised(OOM_GPU) + "will try a smaller batch\n" + raised("KeyError: 'x'"),
            ExitCause.USER_ERROR,
            "exit code 1: KeyError: 'x' (train.py, line 3)",
        ),
        (3, "", ExitCause.USER_ERROR, "exit code 3"),
        (137, "", ExitCause.KILLED, "a child of it was killed by SIGKILL"),
        (143, "", ExitCause.PREEMPTED, "SIGTERM"),
        (139, "", ExitCause.KILLED, "SIGSEGV"),
        (255, "", ExitCause.USER_ERROR, "exit code 255"),
        (-signal.SIGKILL, "", ExitCause.KILLED, "dmesg"),
        (-signal.SIGTERM, "", ExitCause.PREEMPTED, "not by airflow_tf"),
        (-signal.SIGSEGV, "", ExitCause.KILLED, "native code crashed"),
        (-signal.SIGILL, "", ExitCause.USER_ERROR, "lacks instructions"),
        (-signal.SIGHUP, "", ExitCause.KILLED, "SIGHUP"),
        (-60, "", ExitCause.KILLED, "signal 60"),
    ],
)
def test_an_end_has_a_cause_in_words(exit_code: int, output: str, cause: ExitCause, text: str) -> None:
    found, message = classify(exit_code, output)
    assert (found, "\n" in message) == (cause, False)
    assert text in message


def test_a_peer_lost_after_the_first_step_makes_a_victim() -> None:
    assert classify(1, raised(HEARTBEAT))[0] is ExitCause.RENDEZVOUS
    cause, message = classify(1, raised(HEARTBEAT), Evidence(has_stepped=True, peers="replica 1 is in state T"))
    assert cause is ExitCause.VICTIM
    assert "it lost its peers (replica 1 is in state T). It said: " in message


@pytest.mark.parametrize(
    ("exit_code", "output", "evidence", "cause", "text"),
    [
        (-9, "", Evidence(host_oom="the kernel's log says so"), ExitCause.HOST_OOM, "the kernel's log says so"),
        (-9, "", Evidence(host_ending="the host shuts down"), ExitCause.PREEMPTED, "the host shuts down"),
        (1, raised("ValueError: x"), Evidence(device="GPU-1: lost"), ExitCause.DEVICE_LOST, "GPU-1: lost"),
        (1, raised(OOM_GPU), Evidence(device="GPU-1: lost"), ExitCause.CUDA_OOM, "GPU"),
    ],
)
def test_what_the_host_knows_counts(
    exit_code: int, output: str, evidence: Evidence, cause: ExitCause, text: str
) -> None:
    found, message = classify(exit_code, output, evidence)
    assert found is cause
    assert text in message
