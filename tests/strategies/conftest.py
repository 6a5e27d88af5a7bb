"""Gangs for the strategies' tests."""

from tests.supervisor.conftest import make_gang

__all__ = ["make_gang"]
