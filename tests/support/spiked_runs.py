"""Recorded runs whose load was raised for a while."""

from typing import ClassVar

from hashidrill.testing.recordings import RecordingBuilder


class Spiked(RecordingBuilder):
    """The load is at 500 % from 12 to 22; the method (a noop) goes on to 30."""

    profile: ClassVar = {"spike": {"to": "500%", "at": "2s", "for": "10s"}}

    def experiment(self):
        document = super().experiment()
        document["load"]["kv-writes"]["profile"] = self.profile
        return document

    def status(self, status, error, picked, reason=""):
        """Operations for which `picked(seconds)` is true ended so."""
        self._operations = [
            op._replace(status=status, error=error, reason=reason) if picked(op.intended_ns / 1e9) else op
            for op in self._operations
        ]
        return self
