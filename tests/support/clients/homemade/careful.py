"""Right: what a good client does, in a page.

Three retries of what is transient, each gap drawn from the upper half of a window that doubles, a timeout for every
attempt, and the server's Retry-After obeyed, in seconds or as a date.
"""

import email.utils
import random
import sys
import time

from attempt import Answer, read

TRANSIENT = {0, 429, 500, 502, 503, 504}
RETRIES = 3


def gap_s(answer: Answer, retry: int) -> float:
    """How long to wait before this retry, counted from 0."""
    if answer.retry_after.isdigit():
        return int(answer.retry_after)
    if answer.retry_after:
        return max(0.0, email.utils.parsedate_to_datetime(answer.retry_after).timestamp() - time.time())
    return random.uniform(0.5, 1.0) * 0.1 * 2**retry


answer = read(sys.argv[1])
for retry in range(RETRIES):
    if answer.status not in TRANSIENT:
        break
    time.sleep(gap_s(answer, retry))
    answer = read(sys.argv[1])
sys.exit(not answer.ok)
