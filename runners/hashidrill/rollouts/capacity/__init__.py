"""Finds the highest load, or other parameter, at which an SLO still holds."""
