"""Tests of changes and of limits: `gate`, `bisect`, `explore`, `capacity`."""
