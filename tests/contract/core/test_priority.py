"""What keeps time comes before the rest, where it may; what it starts does not."""

import os
import subprocess
import sys

import pytest

NOBODY = 65534
SCRIPT = """
import os, subprocess, sys
from hashidrill.core.util.processes import ahead
os.setuid(int(sys.argv[1]))
ahead()
print(os.getpriority(os.PRIO_PROCESS, 0), subprocess.check_output(["nice"], text=True).strip())
print(open("/proc/self/autogroup").read().split()[-1] if os.path.exists("/proc/self/autogroup") else "none")
"""


def said(user):
    command = [sys.executable, "-c", SCRIPT, str(user)]
    return subprocess.check_output(command, text=True, start_new_session=True).split()


@pytest.mark.may_skip("an ordinary user cannot")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask to come first")
def test_root_comes_first_with_its_session_and_its_children_do_not():
    own, childs, group = said(0)
    assert (own, childs) == ("-10", "0")
    assert group in {"-10", "none"}


@pytest.mark.may_skip("an ordinary user cannot")
@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become another user")
def test_an_ordinary_user_stays_where_he_was():
    own, childs, group = said(NOBODY)
    assert (own, childs) == ("0", "0")
    assert group in {"0", "none"}
