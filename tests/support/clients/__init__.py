"""Small real clients of known behaviour: what the verdicts on retries are checked against."""
