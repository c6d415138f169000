"""Every error that a user can meet, in one tree.

A message says what happened, where (file, line, host, fault), what was expected and what to do next. The command
line prints it and exits with `exit_code`, without a traceback.
"""

from typing import ClassVar


class HashidrillError(Exception):
    """Base of all errors that are meant for the user. `exit_code` is the exit code of the process."""

    exit_code: ClassVar[int] = 2


class UsageError(HashidrillError):
    """Bad flags, a missing file, a run that does not exist."""


class OutputError(HashidrillError):
    """A command's output could not be written, so the command has no verdict to exit with."""

    exit_code = 74


class ExperimentError(HashidrillError):
    """A YAML document that cannot be used; the message names file, line and column."""


class UnknownNameError(ExperimentError):
    """An unknown fault, load, probe, hypothesis or selector; the message lists similar names."""


class InterlockError(HashidrillError):
    """A condition for touching an existing datacenter is not met; the message says which, and what to do.

    Nothing was touched.
    """


class MachineError(HashidrillError):
    """The machine cannot do what was asked; the message holds the command that fixes it."""


class BinaryError(HashidrillError):
    """A binary could not be found or fetched; the message lists each way that was tried and why it failed."""


class DatacenterError(HashidrillError):
    """The datacenter did not start, or was not ready in time. The run is INVALID."""

    exit_code = 3


class AttachError(HashidrillError):
    """A datacenter cannot be attached because of its file, an address, a certificate or a token; it is untouched."""


class UnreachedError(AttachError):
    """A host of an attached datacenter does not answer now; it may answer later."""


class SelectorError(DatacenterError):
    """A selector matches no host at the moment of injection."""


class UnfitError(DatacenterError):
    """The machine cannot carry the experiment; the message names the missing resource."""


class SteadyStateError(DatacenterError):
    """The steady state never held; no fault was applied."""


OTHER_WORK = "other work on this machine"
"""Part of a SteadyStateError's message when other processes took the CPUs that the run needs."""


NOT_READY = "ended before it was ready"
"""Part of a DatacenterError's message when an agent ended while the datacenter started."""
OWN_CONFIGURATION = "with the experiment's own configuration"
"""Part of the same message if the experiment adds keys to the configuration of that agent."""


NOT_A_REPLY = "a load returns a Reply for each operation, even for one without an answer"
"""Part of a DatacenterError's message when a load raised an error of another package."""


class FaultError(HashidrillError):
    """A fault could not be applied, or was not proven in force. The run is INVALID."""

    exit_code = 3


class MomentError(FaultError):
    """The moment that a step waits for did not come in time. The run is INVALID."""


class OthersFaultError(FaultError):
    """Another run has a fault of this kind in force, which stays. The run itself left nothing there."""


class CapabilityError(FaultError):
    """A host lacks the capability that a fault, probe or service asked for."""

    def __init__(self, host: str, capability: str) -> None:
        super().__init__(f"{host} lacks {capability}; put this on a host that has it")


class JournalHeldError(HashidrillError):
    """Raised if another process still writes to this journal: the run is not over."""


class NotOursError(HashidrillError):
    """The machine or user that recorded the run is another one, or unknown, so heal does not act on it."""


class RevertError(HashidrillError):
    """A fault could not be reverted, or was not proven gone."""

    exit_code = 4


class RecordingError(HashidrillError):
    """A recording is missing, unfinished or unreadable."""


class UnrecordedError(RecordingError):
    """A recording could not be completed. The run counts as INVALID."""

    exit_code = 3


class WaitTimeoutError(DatacenterError):
    """A wait reached its deadline; the message carries the last evidence."""


class HypothesisInvalidError(HashidrillError):
    """A hypothesis had nothing to check: no operations, no fault window, no samples. INVALID, never PASS."""

    exit_code = 3
