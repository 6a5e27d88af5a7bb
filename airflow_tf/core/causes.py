"""Why a program ended: from its exit code, the end of its output and what else is known, to one cause in words.

The texts looked for are those of TensorFlow 2.21, CUDA, cuDNN, NCCL and Python. A Python error decides by its own text;
lines that TensorFlow logged before it count only if the error is TensorFlow's, or if there is none: a program may have
got over an allocation that failed and end by something else.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.placement import missing_device
from airflow_tf.core.states import ExitCause

_QUOTE_CHARACTERS = 300
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(
    r"(During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):\s*$"
)
_TENSORFLOW_ERROR = re.compile(
    r"^(tensorflow\.|jaxlib\.|keras\.)?[\w.]*errors_impl\.\w+|^XlaRuntimeError", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the host knows of the end of a process, each in words and empty where there is nothing.

    :param host_oom: that the kernel's OOM killer has ended a process of it.
    :param device: what is wrong with a device of it.
    :param host_ending: that the host shuts down.
    :param peers: which other members of its gang do not go on.
    :param has_stepped: whether it had reported a step: its peers had found each other then.
    """

    host_oom: str = ""
    device: str = ""
    host_ending: str = ""
    peers: str = ""
    has_stepped: bool = False


NO_EVIDENCE = Evidence()


@dataclass(frozen=True, slots=True)
class _Rule:
    """A text by which a cause is known, and how to say it."""

    pattern: re.Pattern[str]
    cause: ExitCause
    meaning: str


def _rule(cause: ExitCause, meaning: str, *patterns: str) -> _Rule:
    return _Rule(re.compile("|".join(patterns)), cause, meaning)


_RULES = (
    _rule(
        ExitCause.HOST_OOM,
        "the host's memory did not suffice. Read less at once, lower the batch size, or raise train.memory_limit",
        r"OOM when allocating tensor.*(device:CPU:\d|by allocator (mkl)?cpu)",
        r"^MemoryError\b",
        r"^[\w.]*_ArrayMemoryError\b",
        r"std::bad_alloc",
        r"OSError: \[Errno 12\] Cannot allocate memory",
    ),
    _rule(
        ExitCause.CUDA_OOM,
        "the memory of its GPU did not suffice. Lower the batch size, set gpu_options.allow_growth, "
        "or ask for more by devices.min_free_memory",
        r"OOM when allocating tensor",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate|failed to allocate)",
        r"ResourceExhaustedError: .*([Oo]ut of memory|failed to allocate memory)",
        r"(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
        r"Status: out of memory",
    ),
    _rule(
        ExitCause.DEVICE_LOST,
        "its device failed. The next attempt takes another one where one is free; "
        "'airflow tf devices' says what NVML reports of this one",
        r"CUDA_ERROR_(ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|HARDWARE_STACK_ERROR|DEVICE_UNAVAILABLE|CONTAINED)",
        r"uncorrectable (ECC|NVLink) error",
        r"GPU is lost",
        r"fallen off the bus",
        r"all CUDA-capable devices are busy or unavailable",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
    ),
    _rule(
        ExitCause.USER_ERROR,
        "the installed cuDNN does not match TensorFlow's. Install tensorflow[and-cuda] in the training environment",
        r"Loaded runtime CuDNN library: .* but source was compiled with",
        r"DNN library (initialization failed|is not found)",
    ),
    _rule(
        ExitCause.USER_ERROR,
        "the host's GPU driver does not match the CUDA of TensorFlow. Install a newer driver",
        r"CUDA driver version is insufficient for CUDA runtime version",
        r"system has unsupported display driver / cuda driver combination",
        r"Driver/library version mismatch",
    ),
    _rule(
        ExitCause.RENDEZVOUS,
        "the port of its server was taken. Another attempt gets other ports",
        r"Could not start gRPC server",
        r"No address added out of total \d+ resolved",
    ),
    _rule(
        ExitCause.RENDEZVOUS,
        "NCCL failed between the devices. NCCL_DEBUG=WARN under train.environment makes it say more",
        r"(NCCL|Nccl\w*).*(unhandled (system|cuda) error|internal error|invalid usage|remote process exited)",
        r"unhandled system error",
    ),
)

_PEERS = re.compile(
    r"CreateSession still waiting for response from worker"
    r"|Barrier timed out"
    r"|failed to connect to all addresses"
    r"|tasks are unhealthy \(stopped sending heartbeats\)"
    r"|tried to connect with a different incarnation"
    r"|Collective has timed out"
    r"|errors_impl\.(UnavailableError|DeadlineExceededError|AbortedError)"
    r"|Connection reset by peer|Socket closed"
)
"""What a member of a cluster says when it cannot reach another one."""

_HINTS = (
    (
        re.compile(r"Cannot dlopen some GPU libraries"),
        "TensorFlow did not find its CUDA libraries and used no GPU: install tensorflow[and-cuda]",
    ),
    (
        re.compile(r"Could not find cuda drivers on your machine"),
        "TensorFlow found no CUDA driver and used no GPU",
    ),
    (
        re.compile(r"No space left on device|OSError: \[Errno 28\]"),
        "a disk is full",
    ),
)

_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def classify(exit_code: int, output: str, evidence: Evidence = NO_EVIDENCE) -> tuple[ExitCause, str]:
    """Return the cause of an end that nobody asked for, and one line that says it.

    :param exit_code: as of ``subprocess``: negative for a signal; never 0.
    :param output: the last kilobytes of what the program wrote.
    """
    how = _how(exit_code)
    if evidence.host_oom:
        return ExitCause.HOST_OOM, f"{how}: {evidence.host_oom}. {_RULES[0].meaning}"
    found = _by_text(output, evidence)
    if evidence.device and (found is None or found[0] is not ExitCause.CUDA_OOM):
        return ExitCause.DEVICE_LOST, f"{how}: {evidence.device}"
    if found is not None:
        return found[0], f"{how}: {found[1]}"
    if exit_code > 0:
        how += _raised(output)
    return _by_signal(_signal_of(exit_code), how, _hint(output), evidence)


def _by_signal(number: int | None, how: str, hint: str, evidence: Evidence) -> tuple[ExitCause, str]:
    """Return the cause of an end about which the output says nothing."""
    if number == signal.SIGTERM or (number == signal.SIGKILL and evidence.host_ending):
        return (
            ExitCause.PREEMPTED,
            f"{how}, not by airflow_tf{f': {evidence.host_ending}' if evidence.host_ending else ''}",
        )
    if number == signal.SIGKILL:
        return ExitCause.KILLED, f"{how}, by hand or because the host ran out of memory ('dmesg' says so)"
    if number in _CRASHES:
        cause = ExitCause.USER_ERROR if number == signal.SIGILL else ExitCause.KILLED
        what = (
            "the processor lacks instructions that it was built for"
            if number == signal.SIGILL
            else "native code crashed"
        )
        return cause, f"{how}: {what}{hint}"
    if number is not None:
        return ExitCause.KILLED, f"{how}, not by airflow_tf{hint}"
    return ExitCause.USER_ERROR, f"{how}{hint}"


def _signal_of(exit_code: int) -> int | None:
    """Return the signal that an exit code tells of: its own, or a child's as a shell reports it (128 + n)."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code - 128 in set(signal.Signals) else None


def _how(exit_code: int) -> str:
    number = _signal_of(exit_code)
    name = "" if number is None else _name(number)
    if exit_code < 0:
        return f"the process was killed by {name}"
    return f"the program ended with exit code {exit_code}{f' (a child of it was killed by {name})' if name else ''}"


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _by_text(output: str, evidence: Evidence) -> tuple[ExitCause, str] | None:
    """Return the first cause that the program's error, or else its log, speaks of."""
    for text in _texts(output):
        for rule in _RULES:
            if line := _first_line(rule.pattern, text):
                return rule.cause, f"{rule.meaning}. It said: {line}"
        if line := _first_line(_PEERS, text):
            said = f"{f' ({evidence.peers})' if evidence.peers else ''}. It said: {line}"
            if evidence.has_stepped:
                return ExitCause.VICTIM, f"it lost its peers{said}"
            return ExitCause.RENDEZVOUS, f"the members did not find each other{said}"
    return None


def _texts(output: str) -> Iterator[str]:
    """Yield the last error with what it was raised from, then, where that is TensorFlow's or none, the whole output."""
    error = _last_error(output)
    if error:
        yield error
    if not error or _TENSORFLOW_ERROR.search(error):
        yield output


def _last_error(output: str) -> str:
    """Return the last traceback, with those before it that it was raised from, empty where there is none."""
    start = output.rfind(_TRACEBACK)
    while start > 0 and _CHAINED.search(output[:start]):
        earlier = output.rfind(_TRACEBACK, 0, start)
        if earlier < 0:
            break
        start = earlier
    return output[start:] if start >= 0 else ""


def _raised(output: str) -> str:
    """Return ``: ValueError: no such column (train.py, line 3)`` of an error that nobody caught, empty if none."""
    start = output.rfind(_TRACEBACK)
    if start < 0:
        return ""
    lines = output[start + len(_TRACEBACK) :].splitlines()
    error = next((line for line in lines if line and not line[0].isspace()), "")
    frames = _FRAME.findall("\n".join(lines))
    where = f" ({Path(frames[-1][0]).name}, line {frames[-1][1]})" if frames else ""
    return f": {error[:_QUOTE_CHARACTERS]}{where}" if error else ""


def _first_line(pattern: re.Pattern[str], text: str) -> str:
    found = next((line for line in text.splitlines() if pattern.search(line)), "")
    return found.strip()[:_QUOTE_CHARACTERS]


def _hint(output: str) -> str:
    found = [hint for pattern, hint in _HINTS if pattern.search(output)]
    if missing := missing_device(_last_error(output)):
        found.append(missing)
    return f" ({'; '.join(found)})" if found else ""
