"""Shows a run in progress, on a terminal or in a log."""
