"""Bridges from Airflow (configuration, connections) to the drivers."""
