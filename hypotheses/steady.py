"""Does the steady state hold by itself, and how far is it from its limits?"""

from dataclasses import replace

from hashidrill import Held, Recording, hypothesis
from hashidrill.core.judging.at_worst import all_hold


@hypothesis
def steady_state_holds(recording: Recording) -> Held:
    """Each condition of the steady state holds from the steady state to the end of the method.

    Each is measured over windows of its own length (`for` of the condition, otherwise of the steady state), and the
    worst window decides. `hashidrill run --no-faults` asks it. With faults in the method it holds them to the limits of
    the steady state.
    """
    steady = recording.experiment.steady_state
    width_s = float(steady.for_)
    return all_hold(recording, [replace(each, window_s=each.window_s or width_s) for each in steady.require])
