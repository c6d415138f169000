"""Does the steady state hold by itself, and how far is it from its limits?"""

from dataclasses import replace

from hashidrill import Held, Recording, hypothesis
from hashidrill.core.judging.at_worst import all_hold


@hypothesis
def steady_state_holds(recording: Recording) -> Held:
    """Each condition of the steady state holds from the steady state to the end of the method.

    Each condition is measured over windows as long as its own `for`, otherwise the `for` of the steady state, and the
    worst window decides. `hashidrill run --no-faults` judges this. If the method has faults, the limits of the steady
    state must hold while they are in force, too.
    """
    steady = recording.experiment.steady_state
    width_s = float(steady.for_)
    return all_hold(recording, [replace(each, window_s=each.window_s or width_s) for each in steady.require])
