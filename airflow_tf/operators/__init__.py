"""Operators: training, aggregation, evaluation, publication."""
