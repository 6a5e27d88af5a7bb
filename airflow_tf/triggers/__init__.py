"""What watches for deferred tasks, in the triggerer: only the ledger and, where they are visible, output files."""
