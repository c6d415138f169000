"""How a run looks while it goes on, on a terminal or in a log."""
