"""Stands for the program that is moved; only its place is looked at."""
