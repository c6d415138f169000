"""The manifest of the reference clients is whole: known names, good and bad ones for each verdict, files that exist."""

import sys
from pathlib import Path

import pytest

import places
from hashidrill.core.tap.catalogue import BATTERY_PAIRS, EXPERIMENT_ONLY, FAULTS, LASTING, TRANSIENT, VERDICTS

CONTRACT = places.CONTRACT
sys.path.append(str(CONTRACT))  # where the clients' package is

from clients import prepare  # noqa: E402
from clients.facts import EVERYTHING, FAIL, INVALID, NO_CONNECTION, PASS, Facts, verdicts  # noqa: E402
from clients.manifest import CLIENTS  # noqa: E402

TIMING = ("backoff", "exponential", "jitter")
OF_THE_SYSTEM = {"recovers"}
"""No client has it alone: it takes an upstream that wastes work."""
KINDS = {"python", "go", "system"}


def test_there_are_at_least_24_with_names_of_their_own():
    names = [client.name for client in CLIENTS]

    assert len(names) >= 24
    assert len(set(names)) == len(names)
    assert {client.kind for client in CLIENTS} == KINDS


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_expectation_is_one_that_can_be_met(client):
    """Its verdict and fault are in the catalogue, and the battery judges the one on the other."""
    judged = {*BATTERY_PAIRS, *((name, fault) for name in TIMING for fault in LASTING)}

    assert set(client.expected) <= judged
    assert set(client.undecided) <= judged
    assert set(client.as_service) <= set(EXPERIMENT_ONLY)
    assert {*client.expected.values(), *client.as_service.values()} <= {PASS, FAIL, INVALID}
    assert client.facts.retries_on <= set(FAULTS)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_each_says_something_that_can_be_wrong(client):
    assert client.why
    assert {*client.expected.values(), *client.as_service.values()} & {PASS, FAIL}


@pytest.mark.parametrize("client", [one for one in CLIENTS if not one.service], ids=lambda client: client.name)
def test_each_has_an_expectation_for_all_that_the_battery_judges_or_says_why_not(client):
    """The timing verdicts are judged on one of the lasting faults: which one is part of the expectation."""
    said = {*client.expected, *client.undecided}

    assert {pair for pair in BATTERY_PAIRS if pair[0] not in TIMING} <= said
    assert {name for name, _ in said if name in TIMING} == set(TIMING)


@pytest.mark.parametrize("name", [name for name in VERDICTS if name not in OF_THE_SYSTEM])
@pytest.mark.parametrize("verdict", [PASS, FAIL])
def test_each_verdict_has_a_client_that_passes_it_and_one_that_fails_it(name, verdict):
    """A verdict that no reference client fails could be stuck at PASS, and nobody would know."""
    found = [
        client.name
        for client in CLIENTS
        if client.as_service.get(name) == verdict
        or any(pair[0] == name and said == verdict for pair, said in client.expected.items())
    ]

    assert found


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("verdict", [PASS, FAIL])
def test_each_fault_has_a_client_that_gets_over_it_and_one_that_does_not(fault, verdict):
    assert any(client.expected.get(("present", fault)) == verdict for client in CLIENTS)


def test_the_files_of_all_clients_exist_and_say_what_they_do():
    for client in CLIENTS:
        script = next((word for word in client.argv if word.startswith("{clients}")), None)
        if client.kind == "python":
            assert (prepare.FOLDER / script.removeprefix("{clients}/")).read_text().startswith('"""'), client.name
        if client.kind == "go":
            source = prepare.FOLDER / "go" / "cmd" / client.name / "main.go"
            assert source.read_text().startswith(f"// {client.name} ")


def test_no_client_is_left_out_of_the_manifest():
    helpers = {"attempt.py", "lock.py"}
    named = {Path(word).name for client in CLIENTS for word in client.argv}

    assert {path.name for path in prepare.FOLDER.glob("*/*.py")} - helpers <= named
    assert {path.name for path in (prepare.FOLDER / "go" / "cmd").iterdir()} <= named


def test_a_command_line_is_filled_in():
    argv = ("{python}", "{clients}/python/x.py", "{bin}/y", "{url}/v1/kv", "{seconds}")

    filled = prepare.command(argv, url="http://127.0.0.1:1", bin_folder=Path("/b"), seconds=3)

    assert filled == [sys.executable, f"{prepare.FOLDER}/python/x.py", "/b/y", "http://127.0.0.1:1/v1/kv", "3"]


def test_clients_are_led_to_the_address_and_past_any_proxy(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:2")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:2")

    found = prepare.environment("http://127.0.0.1:1")

    assert not [name for name in found if name.lower().endswith("_proxy")]
    assert found["CONSUL_HTTP_ADDR"] == found["VAULT_ADDR"] == found["NOMAD_ADDR"] == "http://127.0.0.1:1"


# How the definitions are applied to facts: a slip here would make the confusion matrix agree on something wrong.


def test_a_client_that_retries_nothing_is_only_said_to_have_no_retry():
    found = verdicts(Facts())

    assert {found["present", fault] for fault in TRANSIENT} == {FAIL}
    assert {said for pair, said in found.items() if pair[0] not in {"present", "timeout_present"}} == {INVALID}


def test_a_plain_write_is_not_asked_to_be_retried_where_that_would_be_wrong():
    found = verdicts(Facts(EVERYTHING, 4, (0.1, 0.2, 0.4), timeout=1, writes="plain"))

    assert (found["present", "503"], found["present", "reply-dropped"]) == (PASS, INVALID)
    assert found["idempotent_only", "reply-dropped"] == FAIL
    assert verdicts(Facts(EVERYTHING, writes="keyed"))["idempotent_only", "reply-dropped"] == INVALID


@pytest.mark.parametrize(
    ("attempts", "gaps", "verdict"),
    [(4, (1, 2, 4), PASS), (5, (0.1, 0.2, 0.4, 0.8), FAIL), (4, (1, 4, 8), FAIL), (float("inf"), (0.1,) * 3, FAIL)],
)
def test_bounded_is_by_number_and_by_time(attempts, gaps, verdict):
    assert verdicts(Facts(EVERYTHING, attempts, gaps))["bounded", "503"] == verdict


@pytest.mark.parametrize(
    ("gaps", "growth", "backoff", "exponential"),
    [
        ((0.1,), "none", INVALID, INVALID),
        ((0, 0.2, 0.4), "exponential", PASS, INVALID),
        ((0.1, 0.1, 0.1), "none", FAIL, INVALID),
        ((0, 0, 0, 0), "none", FAIL, FAIL),
        ((0.1, 0.2, 0.3, 0.4), "linear", PASS, FAIL),
        ((0.1, 0.2, 0.4, 0.8), "exponential", PASS, PASS),
    ],
)
def test_growth_is_by_the_gaps_in_which_it_waits(gaps, growth, backoff, exponential):
    found = verdicts(Facts(EVERYTHING, len(gaps) + 1, gaps, growth))

    assert (found["backoff", "503"], found["exponential", "503"]) == (backoff, exponential)


def test_timing_is_judged_on_the_first_lasting_fault_that_it_retries_on():
    found = verdicts(Facts(NO_CONNECTION, 4, (0, 0.5, 1), jitter=True))

    assert (found["backoff", "refused"], found["jitter", "refused"]) == (PASS, PASS)
    assert ("backoff", "503") not in found


@pytest.mark.parametrize(
    ("retries_on", "replays", "verdict"),
    [
        (frozenset(), "again", FAIL),
        (frozenset(), "gives up", INVALID),
        (frozenset(), "", INVALID),
        (frozenset({"503"}), "again", PASS),
        (frozenset({"503"}), "", PASS),
        (NO_CONNECTION, "again", FAIL),
    ],
)
def test_a_replay_by_the_transport_alone_is_no_retry(retries_on, replays, verdict):
    assert verdicts(Facts(retries_on, replays=replays))["transport_only", "reset-after-reused"] == verdict
