"""The common machinery of loads: schedule, arrivals, HTTP client, load generator, and client commands behind a tap."""
