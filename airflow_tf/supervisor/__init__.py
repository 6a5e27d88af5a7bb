"""Running gangs: devices and ledger brought together, process trees swept, replicas supervised. No Airflow here."""
