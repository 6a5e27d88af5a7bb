"""Migrations of the ledger, run by :mod:`airflow_tf.ledger.migrate`."""
