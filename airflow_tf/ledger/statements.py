"""What every claim of devices does in the database, as text: to look at a statement anew costs more than to run it.

What is found only now and then (something expired, somebody waits, a device has changed) is asked for by one row of
truth values, and then dealt with by the ORM in the modules that use these. The contract tests run each of them on every
database.
"""

from __future__ import annotations

from airflow_tf.ledger.prepared import Prepared

_MEMBERS = (("reservation_id", "of_reservations", "INTEGER"), ("replica", "of_replicas", "INTEGER"))
_ARE_MEMBERS = "(reservation_id, replica) IN (SELECT reservation_id, replica FROM {given})"
_IS_DUE = "state = 'reserved' AND (expires_seconds <= :now OR epoch <> :epoch)"
_IS_LIVE = "state IN ('reserved', 'confirmed')"

RARITIES = Prepared(f"""
    SELECT
        EXISTS (SELECT 1 FROM members WHERE {_IS_DUE}) AS has_due,
        EXISTS (SELECT 1 FROM gangs WHERE key = :of_gang) AS is_known,
        EXISTS (SELECT 1 FROM members WHERE gang_key = :of_gang AND {_IS_LIVE}) AS is_held,
        EXISTS (SELECT 1 FROM reservations WHERE gang_key = :of_gang AND is_void) AS has_void,
        EXISTS (SELECT 1 FROM queue) AS has_queue,
        (
            EXISTS (
                SELECT 1 FROM devices
                WHERE barred_until_seconds > :now AND barred_epoch = :epoch AND host_id || '' = :of_host
            )
            OR EXISTS (SELECT 1 FROM hosts WHERE host_id = :of_host AND drained_why IS NOT NULL)
        ) AS has_bars
""")  # noqa: S608 (constants)
"""What makes a claim other than most.

The host of a barred device is not compared as it is: by its index SQLite would look at all of a host's devices, while
few are barred.
"""

HOSTS_AND_LOOKS = Prepared("""
    SELECT hosts.host_id, boot_id, name, hosts.seen_at, kind, digest, looks.seen_at AS looked_at
    FROM hosts LEFT JOIN looks ON looks.host_id = hosts.host_id
    WHERE machine = :of_machine
""")
"""The places of a machine and what was last read there, one row for each kind of device."""

SEE_HOST = Prepared("UPDATE hosts SET seen_at = :at WHERE host_id = :of_host")
SEE_DEVICES = Prepared(
    "UPDATE looks SET seen_at = :at WHERE host_id = :of_host AND kind IN (SELECT kind FROM {given})",
    (("kind", "of_kinds", "VARCHAR"),),
)

HELD = Prepared("SELECT uuid FROM holdings WHERE host_id = :of_host")
"""Devices of which a live member has a part."""

ADD_GANG = Prepared("""
    INSERT INTO gangs (key, installation, dag_id, run_id, task_id, created_at)
    VALUES (:key, :installation, :dag_id, :run_id, :task_id, :at)
""")
ADD_RESERVATION = Prepared("""
    INSERT INTO reservations (gang_key, host_id, created_at, epoch, arrived_seconds, is_void)
    VALUES (:gang_key, :host_id, :at, :epoch, :arrived_seconds, FALSE)
    RETURNING id
""")
_NEWEST = "(SELECT max(id) FROM reservations WHERE gang_key = :gang_key)"
ADD_MEMBERS = Prepared(
    f"""
    INSERT INTO members (
        reservation_id, replica, gang_key, host_id, state, epoch, expires_seconds, created_at, changed_at,
        share_percent, time_limit_seconds, ended_why
    )
    SELECT
        {_NEWEST}, replica, :gang_key, :host_id, 'reserved', :epoch, :now + :life_seconds, :at, :at,
        :share_percent, :time_limit_seconds, ''
    FROM {{given}}
""",  # noqa: S608 (constants)
    (("replica", "of_replicas", "INTEGER"),),
)
"""Add members to the gang's newest reservation."""

ADD_HOLDINGS = Prepared(
    f"""
    INSERT INTO holdings (member_id, host_id, uuid, share_percent)
    SELECT members.id, :host_id, given.uuid, :share_percent
    FROM {{given}} JOIN members ON members.reservation_id = {_NEWEST} AND members.replica = given.replica
""",  # noqa: S608 (constants)
    (("replica", "of_replicas", "INTEGER"), ("uuid", "uuids", "VARCHAR")),
)
"""Give members their devices: one row of arrays for each part."""

_IS_CONFIRMABLE = "state = 'reserved' AND epoch = :epoch AND expires_seconds > :now"
CONFIRM = Prepared(
    f"""
    UPDATE members
    SET
        state = 'confirmed', supervisor_pid = :pid, confirmed_seconds = :host_now, held_seconds = :now,
        renewed_seconds = :now, changed_at = :at
    WHERE
        {_ARE_MEMBERS} AND {_IS_CONFIRMABLE}
        AND :count = (SELECT count(*) FROM members WHERE {_ARE_MEMBERS} AND {_IS_CONFIRMABLE})
    RETURNING replica
""",  # noqa: S608 (constants)
    _MEMBERS,
)
"""Confirm members if all of them are reserved and not due, otherwise none; return which that were."""

RELEASE = Prepared(
    f"""
    UPDATE members
    SET state = 'released', changed_at = :at, ended_why = CASE WHEN state = 'revoked' THEN ended_why ELSE '' END
    WHERE {_ARE_MEMBERS} AND ({_IS_LIVE} OR (state = 'revoked' AND supervisor_pid IS NOT NULL))
""",  # noqa: S608 (constants)
    _MEMBERS,
)
"""Note that a holder gives back what it has, or that a supervisor has ended what was revoked."""

DROP_HOLDINGS = Prepared(
    f"DELETE FROM holdings WHERE member_id IN (SELECT id FROM members WHERE {_ARE_MEMBERS})",  # noqa: S608 (constants)
    _MEMBERS,
)
"""Take members' devices from them."""
