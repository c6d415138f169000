"""For people who write faults, hypotheses or reports: contract checks, and recordings made by hand."""
