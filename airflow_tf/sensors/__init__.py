"""Sensors: waiting for devices."""
