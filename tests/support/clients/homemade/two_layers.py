"""Wrong: a helper that tries three times, inside a job that tries three times: nine requests for one operation."""

import random
import sys

from attempt import read, repeat


def three_times(operation) -> bool:
    return repeat(operation, (gap_s * random.uniform(0.5, 1.0) for gap_s in (0.1, 0.2)))


def fetch() -> bool:
    return three_times(lambda: read(sys.argv[1]).ok)


sys.exit(not three_times(fetch))
