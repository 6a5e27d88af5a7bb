"""Pages in Airflow's user interface: what the ledger and the run folders tell, behind Airflow's permissions."""
