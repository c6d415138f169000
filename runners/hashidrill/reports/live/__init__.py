"""What a run looks like while it goes on, on a terminal or in a log. What it looks like afterwards is in `reports/`."""
