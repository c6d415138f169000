"""Every error a user can meet, in one tree.

A message says what happened, where (file, line, host, fault), what was expected and what to do next.
The command line prints it and exits with `exit_code`; nobody sees a traceback for their own mistake.
"""

from __future__ import annotations

from typing import ClassVar


class HashidrillError(Exception):
    """Base of all errors that are meant for the user. `exit_code` is what the process ends with."""

    exit_code: ClassVar[int] = 2


class UsageError(HashidrillError):
    """Bad flags, a missing file, a run that does not exist."""


class OutputError(HashidrillError):
    """What a command printed could not be written, and the command has no verdict to exit with."""

    exit_code = 74


class ExperimentError(HashidrillError):
    """A YAML document that cannot be used: the message names file, line and column."""


class UnknownNameError(ExperimentError):
    """A fault, load, probe, hypothesis or selector that does not exist; the message lists near ones."""


class InterlockError(HashidrillError):
    """What must be true before an existing datacenter is touched is not; the message says what, and what to do.

    Nothing was touched.
    """


class MachineError(HashidrillError):
    """The machine cannot do what was asked; the message holds the command that fixes it."""


class BinaryError(HashidrillError):
    """A binary could not be had; the message lists each way that was tried and why it failed."""


class DatacenterError(HashidrillError):
    """The datacenter did not start, or did not get ready in time. The run is INVALID."""

    exit_code = 3


class AttachError(HashidrillError):
    """A datacenter that cannot be attached: its file, an address, a certificate, a token. Nothing was touched."""


class UnreachedError(AttachError):
    """A host of an attached datacenter that does not answer now, and may in a moment."""


class SelectorError(DatacenterError):
    """A selector that matches no host at the moment of injection."""


class UnfitError(DatacenterError):
    """The machine cannot carry the experiment; the message names the resource that is missing."""


class SteadyStateError(DatacenterError):
    """The steady state never held; no fault was applied."""


OTHER_WORK = "other work on this machine"
"""What the message of a SteadyStateError names where the processes of others took the CPUs that the run asked for."""


class FaultError(HashidrillError):
    """A fault could not be applied, or was not proven in force. The run is INVALID."""

    exit_code = 3


class OthersFaultError(FaultError):
    """Nothing of this run is left there, and another run has such a fault in force, which stays."""


class CapabilityError(FaultError):
    """A host has not the capability that a fault, a probe or a service asked it for."""

    def __init__(self, host: str, capability: str) -> None:
        super().__init__(f"{host} lacks {capability}; put this on a host that has it")


class JournalHeldError(HashidrillError):
    """Another process writes to this journal: its run goes on."""


class NotOursError(HashidrillError):
    """Another machine or user recorded the run, or none that is known: heal obeys nothing that it says."""


class RevertError(HashidrillError):
    """A fault could not be reverted, or was not proven gone."""

    exit_code = 4


class RecordingError(HashidrillError):
    """A recording that is missing, unfinished or unreadable."""


class UnrecordedError(RecordingError):
    """A run whose recording could not be written to its end. It counts for nothing: INVALID."""

    exit_code = 3


class WaitTimeoutError(DatacenterError):
    """A wait ran into its deadline; the message carries the last evidence seen."""


class HypothesisInvalidError(HashidrillError):
    """A hypothesis had nothing to check: no operations, no fault window, no samples. INVALID, never PASS."""

    exit_code = 3
