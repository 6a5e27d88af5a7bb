"""How the replicas of a gang find each other: their ports, their ``TF_CONFIG``, and who is missing at the deadline."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_tf.core.cluster import STRATEGY_VARIABLE, replica_name
from airflow_tf.core.launch import Plan
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.core.tf_config import tf_config
from airflow_tf.core.verdict import evaluator_of
from airflow_tf.supervisor import results
from airflow_tf.supervisor.attempt import Alarm, Attempt, ReplicaRun
from airflow_tf.supervisor.ports import HeldPort, Listener, hold_ports, listeners
from airflow_tf.supervisor.sweep import find_tree

LOOK_SECONDS = 0.25
_TAIL_LINES = 5
_ADDRESS_TAKEN = re.compile(r"address already in use|EADDRINUSE|could not start grpc server", re.IGNORECASE)


class Rendezvous:
    """One attempt's cluster, on this host. A member has joined when it listens on its port or has reported a step."""

    def __init__(self, plan: Plan, replicas: Sequence[int]) -> None:
        self._plan = plan
        self._ports: dict[int, HeldPort] = dict(zip(replicas, hold_ports(len(replicas)), strict=True))
        self._own_listeners: dict[int, Listener] = {}
        evaluator = evaluator_of(plan)  # listens to nobody
        self._expected = {number for number in replicas if number != evaluator}
        self._joined: set[int] = set(replicas) - self._expected
        self._again: set[int] = set()
        self._deadlines: dict[int, float] = {}
        self._has_absent = asyncio.Event()

    def variables(self, replica: int) -> dict[str, str]:
        """Return what a replica must find in its environment to join.

        :raises DeclarationError: if the cluster cannot work.
        """
        addresses = [f"127.0.0.1:{port.number}" for port in self._ports.values()]
        config = tf_config(self._plan.roles, addresses, replica)
        return {"TF_CONFIG": config, STRATEGY_VARIABLE: self._plan.strategy}

    def release(self) -> None:
        """Let go of the ports; the attempt has ended."""
        for port in self._ports.values():
            port.release()

    def expect_again(self, replica: int) -> None:
        """Expect a replica that is started again at the same address, within the time that all had."""
        self._own_listeners.pop(replica, None)
        if replica in self._expected:
            self._joined.discard(replica)
            self._again.add(replica)
            self._expect([replica])

    def _expect(self, replicas: Iterable[int]) -> None:
        deadline = asyncio.get_running_loop().time() + self._plan.start_timeout_seconds
        self._deadlines |= dict.fromkeys(replicas, deadline)
        self._has_absent.set()

    async def watch(self, attempt: Attempt) -> Alarm:
        """Look who has joined; raise an alarm if somebody is missing when the time is over."""
        self._expect(self._expected)
        while True:
            await self._has_absent.wait()
            await asyncio.to_thread(self._look, attempt.runs)
            missing = self._missing(attempt.runs, asyncio.get_running_loop().time())
            if missing is not None:
                return Alarm(missing, ExitCause.RENDEZVOUS, self._describe(attempt.runs, missing))
            if len(self._joined) == len(self._ports):
                self._has_absent.clear()
            else:
                await asyncio.sleep(LOOK_SECONDS)

    def _look(self, runs: Mapping[int, ReplicaRun]) -> None:
        waiting = [number for number in runs if number not in self._joined]
        # Looked at first: who has reported a step by now is listening by now, if it ever does.
        stepped = {number for number in waiting if results.last_step(runs[number].folder) is not None}
        found = listeners(self._ports[number].number for number in waiting)
        for number in waiting:
            run, listening = runs[number], found[self._ports[number].number]
            tree = find_tree(run.launch.token, run.marks) if listening else []
            own = [listener for listener in listening if listener.pid in tree]
            if own:
                self._own_listeners[number] = own[0]
                self._ports[number].release()
            if own or number in stepped:
                self._joined.add(number)

    def _missing(self, runs: Mapping[int, ReplicaRun], now: float) -> int | None:
        """Return the first member that did not join in time.

        What ended well counts as long as others get on without it; the end of one that was started again is judged
        elsewhere.
        """
        absent = [number for number in runs if number not in self._joined and now >= self._deadlines[number]]
        trains = bool(absent) and any(results.last_step(run.folder) is not None for run in runs.values())
        return next((n for n in absent if not (runs[n].has_ended and (trains or n in self._again))), None)

    def _describe(self, runs: Mapping[int, ReplicaRun], missing: int) -> str:
        run, names = runs[missing], [replica_name(self._plan.roles, number) for number in sorted(self._joined)]
        state = "it ended before" if run.has_ended else f"it does not listen on port {self._ports[missing].number}"
        tail = results.log_tail(run.folder, _TAIL_LINES) or "nothing"
        return (
            f"did not join its gang within {self._plan.start_timeout_seconds:.0f} s: {state}; "
            f"there are: {', '.join(names) or 'none'}\nLast lines of its output:\n{tail}"
        )

    def explain(self, run: ReplicaRun, outcome: Outcome) -> Outcome:
        """Say who holds the port of a replica that failed because its address was taken.

        A stranger took it: other ports may help. The replica itself did, by a second server: only its author can.
        """
        if outcome.state is not AttemptState.FAILED or not _ADDRESS_TAKEN.search(results.log_tail(run.folder)):
            return outcome
        number = run.launch.replica
        port, tree = self._ports[number].number, find_tree(run.launch.token, run.marks)
        found = listeners([port])[port]
        stranger = next((listener for listener in found if listener.pid not in tree), None)
        own = self._own_listeners.get(number, found[0] if found else None)
        if stranger is not None or own is None:
            who = stranger or "a process that has ended"
            return _changed(outcome, ExitCause.RENDEZVOUS, f"its port {port} was taken by {who}")
        text = f"its port {port} was held by {own}, which is this replica itself: does the program start two servers?"
        return _changed(outcome, ExitCause.USER_ERROR, text)


def _changed(outcome: Outcome, cause: ExitCause, text: str) -> Outcome:
    return replace(outcome, cause=cause, message=f"{text}\n{outcome.message}")
