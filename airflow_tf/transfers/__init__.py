"""Operators that move data to and from the training host."""
