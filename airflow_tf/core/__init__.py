"""Pure decisions and formats: no Airflow, no TensorFlow, no process, no clock of its own."""
