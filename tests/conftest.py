"""What all tests share: nothing may be left when they are done, and those that need a real datacenter have one.

YAML under tests/ is data: `pytest tests` must not take a planted experiment for one to run.
"""

import asyncio
import gc
import inspect
import os
import re
import shutil
import signal
import sys
import tempfile
from _signal import getsignal  # what 11,000 tests ask for 120 times each; the public one looks for an enum
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import virtual_time
from hashidrill.gamedays.history.on_turn_red import VARIABLE as NOTIFY
from hashidrill.gamedays.history.store import VARIABLE as HISTORY
from hashidrill.lab.provision.packages import NO_INSTALL
from hashidrill.lab.sandbox.sandbox import work_parent
from leaks import VARIABLE, Ground
from parallel import UnitsThenMachine, beside_others, processes
from provision import CONSUL_VERSION, Provision, in_full, needs_of

collect_ignore_glob = ["*.yaml", "*.yml"]

# how long one example takes is the machine's affair: other work must not fail a property
settings.register_profile("by events", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("by events")

IN_CI = os.environ.get("CI", "") not in {"", "0", "false"}
HERE = Path(__file__).parent
PROVISION = pytest.StashKey[Provision]()
ON_THE_MACHINE = pytest.StashKey[bool]()
SHORT_TEMP = "/tmp"
MEMORY = "/dev/shm"
LIBRARY_TESTS = "test_experiments.py"
CONSUL_FAULTS = "test_consul_faults_real.py"
AGENTS = ("datacenter", "consul", "nomad", "vault")
PRODUCTS_OF_TIERS = ("nomad", "vault", "kubernetes", "prometheus")
_GONE_WITHIN_S = 15.0
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGALRM})
_HISTORIES = count()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine runs in an event loop of its own: in virtual time among the unit tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run = virtual_time.run if HERE / "unit" in pyfuncitem.path.parents else asyncio.run
    names = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session", autouse=True)
def ground(request):
    """Everything that tests start is made below one directory; at the end, nothing of it is left on this machine.

    Of several processes, the one that ran the machine's tests looks for what is left on the machine.
    """
    before = dict(os.environ)
    work = Path(tempfile.mkdtemp(prefix="hdt-", dir=work_parent()))
    work.chmod(0o711)  # under root, agents are another user, and find their files below it
    compiled = tempfile.mkdtemp(prefix="hdt-pyc-")
    histories = tempfile.mkdtemp(prefix="hdt-history-", dir=in_memory())
    temporary = tempfile.mkdtemp(prefix="hdt-tmp-")
    for folder in (histories, temporary):  # agents' users, and ordinary ones, run hashidrill too
        Path(folder).chmod(0o1777)
    # hundreds of commands are started, and where nothing may be compiled into this checkout, each would compile it all
    os.environ |= {VARIABLE: str(work), "PYTHONPYCACHEPREFIX": compiled, HISTORY: f"{histories}/session.sqlite"}
    os.environ["XDG_STATE_HOME"] = f"{histories}/state"  # with the key of this machine
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.pop(NOTIFY, None)
    os.environ["TMPDIR"], tempfile.tempdir = temporary, None
    os.environ[NO_INSTALL] = "1"  # all that tests need is here by now, or is known to be missing
    try:
        ground = Ground(work)
        yield ground
        alone = request.config.stash[ON_THE_MACHINE] or not any(uses_machine(item) for item in request.session.items)
        left = ground.left_after(_GONE_WITHIN_S, machine=alone)
        left += [f"{path} in TMPDIR" for path in Path(temporary).glob("hashidrill-*") if "traceback" not in path.name]
    finally:
        compiling = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
        for name in (VARIABLE, *compiling, HISTORY, NOTIFY, NO_INSTALL, "XDG_STATE_HOME", "TMPDIR"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
        tempfile.tempdir = None
        for folder in (work, compiled, histories, temporary):
            shutil.rmtree(folder, ignore_errors=True)
    if left:
        pytest.fail("the tests left on this machine:\n  " + "\n  ".join(left), pytrace=False)


@cache
def in_memory():
    """Where files cost no disk, on which deleting one may take 3 ms; None: the machine has no such place with room."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return None
    room = found.f_bavail * found.f_frsize > 4 << 30 and not found.f_flag & os.ST_NOEXEC
    return MEMORY if room and os.access(MEMORY, os.W_OK) else None


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """A folder of the test's own: in memory among the unit tests, which make 100,000 files."""
    if in_memory() is None or HERE / "unit" not in request.path.parents:
        yield tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:30])
        return
    folder = Path(tempfile.mkdtemp(prefix="hdt-", dir=in_memory()))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _a_history_of_its_own(ground):
    """No test writes into the user's history, or has runs of other tests in its own."""
    of_session = os.environ[HISTORY]
    folder = Path(of_session).with_name(f"test-{next(_HISTORIES)}")
    folder.mkdir(mode=0o700)
    os.environ[HISTORY] = f"{folder}/history.sqlite"
    yield
    os.environ[HISTORY] = of_session
    try:
        folder.rmdir()
    except OSError:  # few tests write into it
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _signals_as_before():
    """What a test sets is not the next one's: with SIGPIPE at its default, the first connection that is closed in any
    later test ends all of pytest without a word."""
    before = dispositions()
    yield
    changed = {number: now for number, now in dispositions().items() if now != before[number]}
    if changed.get(signal.SIGALRM) == signal.SIG_DFL:  # pytest-timeout lets go of its own once a test has failed
        del changed[signal.SIGALRM]
    for number in changed:
        if (handler := before[number]) is not None:
            signal.signal(number, handler)
    if changed:
        pytest.fail(f"this test left signals' handlers changed: {changed}", pytrace=False)


@pytest.fixture
def signals_restored(_signals_as_before):
    """For a test that runs in this process what takes signals for its own: a host's agent."""
    before = dispositions()
    yield
    for number, now in dispositions().items():
        if now != before[number]:
            signal.signal(number, before[number])


def dispositions():
    """What happens on each signal that Python can tell of, but for the one that pytest-timeout takes and gives back."""
    return {number: getsignal(number) for number in _SIGNALS}


@pytest.fixture(scope="session")
def tell(request):
    """Prints at once, past pytest's capturing: figures, and what takes minutes and must not look like a hang."""
    return lambda text: say(request.config, text)


def say(config, text):
    """See `tell`."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        if reporter is None:  # one of several processes: its standard error is that of pytest itself
            sys.stderr.write(f"\n{text}\n")
            sys.stderr.flush()
            return
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()  # into a pipe or a file as well: ten minutes of silence look like a hang


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Whole folders are run by a process per core (tests/support/parallel.py); `-n0` keeps to one."""
    config.option.numprocesses = processes(config) or config.option.numprocesses


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # the order of `turn`
    return UnitsThenMachine(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """A shell that ignores SIGINT and SIGQUIT (`&` in a script, some CI runners) would have every child ignore them:
    tests that interrupt children run as if they were started from a terminal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # messages are folded by their length, path included, and a Unix socket's path has 107 characters at most
    if os.access(SHORT_TEMP, os.W_OK):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", SHORT_TEMP)
    if hasattr(config, "workerinput") and config.option.basetemp:  # and pytest-xdist would add `popen-gw0` to it
        config.option.basetemp = str(config.option.basetemp).replace("popen-gw", "")
    config.stash[PROVISION] = Provision(lambda text: say(config, text))
    config.stash[ON_THE_MACHINE] = False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """What has to be built or installed is there before the first unit test, and before the first test that uses the
    machine: outside of a test's timeout, and got by one process at a time."""
    machine = uses_machine(item)
    part = (each for each in item.session.items if uses_machine(each) == machine)  # read for the first such test alone
    item.config.stash[PROVISION].provide_once(machine, part)
    item.config.stash[ON_THE_MACHINE] |= machine
    return (yield)


def uses_machine(item):
    """Whether it runs in the one process that has the machine."""
    return not beside_others(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Fails, or skips, a test whose needs could not be got, before any of its fixtures is made."""
    provision = item.config.stash[PROVISION]
    for need in needs_of(item):
        if (lacking := provision.lacking.get(need)) is not None:
            refuse(f"{need} could not be got: {lacking.why.splitlines()[0]}", cannot=lacking.cannot)


def refuse(reason, *, cannot):
    """Skips where the machine truly cannot; that is a failure in CI, like everything else that was not got."""
    (pytest.skip if cannot and not IN_CI else pytest.fail)(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a skip is a failure: what is not run there is not run anywhere. `may_skip` names the exceptions."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("may_skip") is None:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be skipped: {call.excinfo.value}"
    return report


@pytest.fixture(scope="session")
def binary(request):
    """`binary("consul", "1.10.3")`: one that was got before the first test. Fails where no test said it needs it."""
    provision = request.config.stash[PROVISION]

    def of(name, version=""):
        need = in_full(f"{name} {version}".strip())
        if need in provision.lacking:
            pytest.fail(f"{need} could not be got: {provision.lacking[need].why.splitlines()[0]}")
        if need not in provision.got:
            pytest.fail(f"nothing said that {need} is needed: mark the test with @pytest.mark.needs({need!r})")
        return provision.got[need]

    return of


@pytest.fixture(scope="session")
def kubernetes_node():
    """A node of Kubernetes of our own, for all tests of a process: they leave it as they found it."""
    from kubernetes.node import node

    with node() as one:
        yield one


@pytest.fixture(scope="session")
def tool(request):
    """`tool("chromium")`: the path of a system tool that the test said it needs."""
    return request.config.stash[PROVISION].got.__getitem__


@pytest.fixture(scope="session")
def consul(binary):
    """The Consul binary, on a machine that can run a datacenter."""
    return binary("consul", CONSUL_VERSION)


@pytest.fixture(scope="session")
def toxiproxy(binary):
    """The toxiproxy-server binary, on such a machine."""
    return binary("toxiproxy-server")


@pytest.fixture(scope="session")
def bbolt(binary):
    return binary("bbolt")


@pytest.hookimpl(tryfirst=True)  # before -m is asked
def pytest_collection_modifyitems(items):
    """What starts real agents is in the tier `long`, but for those marked `smoke`.

    First what takes CPU alone, beside which Consul's faults go on; then what needs the machine for itself; last the
    library's runs. The order is kept otherwise."""
    for item in items:
        if uses_machine(item) and starts_agents(item) and item.get_closest_marker("smoke") is None:
            item.add_marker("long")
    items.sort(key=turn)


def pytest_collection_finish():
    """Modules and tests stay until the end: among the 300 MB of them, each full collection found nothing to free.

    Nor did most of the young ones, one for each 700 objects: they took 8 % of the CPU of tests that read recordings.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def turn(item):
    if beside_others(item.nodeid):
        return 0
    if alone(item.path):
        return 1 if item.path.name == CONSUL_FAULTS else 2
    if any(item.get_closest_marker(product) for product in PRODUCTS_OF_TIERS):
        return 2  # agents of three products start, on all cores: beside it a run is INVALID, and rightly so
    of_the_library = item.path.name == LIBRARY_TESTS or "demo" in getattr(item, "fixturenames", ())
    return 4 if of_the_library else 3


def starts_agents(item):
    needed = {need.partition(" ")[0] for need in needs_of(item)}
    return not needed.isdisjoint(AGENTS) or "demo" in getattr(item, "fixturenames", ())


def alone(path):
    """Whether tests of that file measure, or go by the clock, so that nothing may run beside them."""
    return path.relative_to(HERE).parts[0] == "contract" or path.name == "test_killed_runner.py"


@pytest.fixture(autouse=True)
def _consul_reports_go_ahead(request):
    if uses_machine(request.node):
        request.getfixturevalue("consul_reports")


@pytest.fixture(scope="session")
def consul_reports(ground, request, tmp_path_factory):
    """What Consul's faults come to on real datacenters, where tests of them were selected; begun with the first test
    that uses the machine."""
    of_consul = [item for item in request.session.items if item.path.name == CONSUL_FAULTS]
    runs = {item.callspec.params.get("version") for item in of_consul if hasattr(item, "callspec")}
    lacking = request.config.stash[PROVISION].lacking
    if not of_consul or any(need in lacking for item in of_consul for need in needs_of(item)):
        yield None
        return
    from consul_reports import ConsulReports

    binary = request.getfixturevalue("binary")
    reports = ConsulReports(lambda version: binary("consul", version).path, tmp_path_factory.mktemp("consul-faults"))
    reports.begin(sorted(runs - {None}))
    try:
        yield reports
    finally:
        reports.close()


@pytest.fixture(scope="session")
def library_runs(ground, tmp_path_factory):
    """The runs of the library's experiments, one at a time."""
    from library_runs import LibraryRuns

    return LibraryRuns(tmp_path_factory.mktemp("library"))
