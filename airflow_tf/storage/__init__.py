"""File systems that hold inputs and results, and the mover process in which all their I/O runs."""
