"""What a person types: the command line and the pytest plugin."""
