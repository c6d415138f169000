"""Each rule finds what it is for, in the right line, and leaves the near miss alone. The near misses are the point."""

from dataclasses import replace
from pathlib import Path

import pytest

from hashidrill.clients.audit.run import RULES, audit

FIXTURES = Path(__file__).with_name("cases")
ROOT = FIXTURES.parents[4]
FIRING = sorted(path for path in FIXTURES.glob("HD*/fires*"))
NEAR = sorted(path for path in FIXTURES.glob("HD*/near_miss*"))


def shown(path):
    return f"{path.parent.name}-{path.name}"


def found(folder, rule_id):
    return [finding for finding in audit([folder]).findings if finding.rule_id == rule_id]


def marked(folder, rule_id):
    """(file, line) of the lines that a fixture marks as the place of the finding."""
    return {
        (str(path), number)
        for path in folder.rglob("*")
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if f"<- {rule_id}" in line
    }


def test_every_rule_has_a_file_that_fires_it_and_a_near_miss():
    assert {path.parent.name for path in FIRING} == set(RULES)
    assert {path.parent.name for path in NEAR} == set(RULES)


@pytest.mark.parametrize("folder", FIRING, ids=shown)
def test_it_fires(folder):
    rule_id = folder.parent.name
    hits = found(folder, rule_id)
    assert hits
    assert all(hit.severity is RULES[rule_id].severity for hit in hits)


@pytest.mark.parametrize("folder", FIRING, ids=shown)
def test_it_fires_where_it_should_and_nowhere_else(folder):
    rule_id = folder.parent.name
    if expected := marked(folder, rule_id):
        assert {(hit.path, hit.place.line) for hit in found(folder, rule_id)} == expected


@pytest.mark.parametrize("folder", NEAR, ids=shown)
def test_the_near_miss_does_not_fire(folder):
    result = audit([folder])
    assert result.files, "the near miss was not even recognised"
    assert not result.problems
    assert [finding for finding in result.findings if finding.rule_id == folder.parent.name] == []


def test_most_findings_are_marked_in_their_fixture():
    """JSON, systemd units and environment files have no comment beside a value."""
    unmarked = {shown(path) for path in FIRING if not marked(path, path.parent.name)}
    assert unmarked == {
        "HD001-fires",
        "HD002-fires",
        "HD105-fires",
        "HD105-fires_shell",
        "HD111-fires_json",
        "HD211-fires_json",
        "HD301-fires_json",
        "HD302-fires",
        "HD302-fires_dropin",
        "HD302-fires_env",
        "HD501-fires",
        "HD501-fires_reset",
        "HD501-fires_shell",
    }


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_says_what_why_and_what_to_do(rule):
    assert all(len(said) > 5 for said in (rule.what, rule.why, rule.fix, rule.source))
    assert rule.link.startswith("https://") or (ROOT / rule.link).is_file()
    assert rule.name == rule.name.lower()


NOT_SHOWN = {
    "HD001": "about the audit's own comments: the fixtures show it",
    "HD002": "about the audit's own comments: the fixtures show it",
    "HD501": "about systemd, which cannot be started beside the one that runs a machine",
}
"""Rules without a live test, and why."""


def test_each_rule_names_the_test_that_showed_it_or_is_known_to_have_none():
    assert {rule.id for rule in RULES.values() if rule.verified is None} == set(NOT_SHOWN)


def shown_by(rule):
    """What the test that showed a rule says of itself; None where there is no such test."""
    path, _, name = rule.verified.partition("::")
    _, found, test = (ROOT / path).read_text().partition(f"def {name}(")
    return test.partition('"""')[2].partition('"""')[0] if found else None


@pytest.mark.lie
def test_no_claim_is_shown_by_night_alone():
    """A rule that a new version of an agent makes wrong is found before a pull request, where that agent is there."""
    shown_by = {rule.verified.partition("::")[0] for rule in RULES.values() if rule.verified}
    assert {path for path in shown_by if ".nightly" in (ROOT / path).read_text()} == set()


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.verified], ids=lambda rule: rule.id)
def test_a_verified_claim_names_a_test_that_exists_and_that_names_the_rule(rule):
    assert rule.id in shown_by(rule)


def test_a_test_that_is_gone_or_shows_something_else_would_be_noticed():
    rule = RULES["HD101"]
    assert shown_by(replace(rule, verified=f"{rule.verified}_in_time")) is None
    assert rule.id not in shown_by(RULES["HD102"])


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def placed(folder, rule_id):
    return [(Path(hit.path).relative_to(folder).as_posix(), hit.place.line) for hit in found(folder, rule_id)]


def test_a_finding_in_a_drop_in_is_told_where_the_drop_in_says_it():
    folder = FIXTURES / "HD302/fires_dropin"
    assert placed(folder, "HD302") == [("vault-app.service.d/retries.conf", 2)]


@pytest.mark.lie
@pytest.mark.parametrize(
    ("files", "rules"),
    [
        # the last one by the file's name wins, wherever it stands
        (
            {
                "etc/a.service": "[Service]\nExecStart=/bin/consul agent\nRestart=always",
                "etc/a.service.d/20.conf": "[Service]\nRestart=no",
                "lib/a.service.d/10.conf": "[Service]\nRestart=always",
            },
            {"HD501"},
        ),
        (
            {
                "etc/a.service": "[Service]\nExecStart=/bin/consul agent",
                "lib/a.service.d/10.conf": "[Service]\nRestart=always",
            },
            set(),
        ),
        # a drop-in alone does not say what its unit says
        ({"a.service.d/10.conf": "[Service]\nExecStart=\nExecStart=/bin/consul agent"}, set()),
        ({"a.service.d/10.conf": "[Service]\nExecStart=/bin/consul agent\nRestart=no"}, {"HD501"}),
        ({"a.service.d/10.conf": "[Service]\nEnvironment=VAULT_MAX_RETRIES=0"}, {"HD302"}),
        ({"a.service": "[Service]\nEnvironment=VAULT_MAX_RETRIES=0\nEnvironment=VAULT_MAX_RETRIES=2"}, set()),
        ({"a.service": "[Service]\nEnvironment=VAULT_MAX_RETRIES=0\nUnsetEnvironment=VAULT_MAX_RETRIES"}, set()),
        ({"a.service": "[Service]\nExecStart=/usr/bin/env A=b consul agent"}, {"HD501"}),
        ({"a.service": "[Service]\nExecStart=/bin/sh -c 'mkdir -p /x; A=b exec nomad agent'"}, {"HD501"}),
        ({"a.service": "[Service]\nExecStart=/bin/sh /opt/start.sh consul agent"}, set()),
        ({"other.conf": "[Service]\nEnvironment=VAULT_MAX_RETRIES=0"}, set()),
    ],
)
def test_a_unit_is_what_systemd_makes_of_it_and_its_drop_ins(tmp_path, files, rules):
    write_files(tmp_path, files)
    assert {finding.rule_id for finding in audit([tmp_path]).findings} == rules


UNIT = "[Service]\nRestart=on-failure\nExecStart="
AGENT = 'data_dir = "/opt/consul"\nserver = false\n'
JOINS = "-retry-join=10.0.0.1"
NOMAD_SERVER = "nomad agent -server -bootstrap-expect=3 -data-dir=/opt/nomad -consul-server-auto-join=false"


@pytest.mark.parametrize(
    ("files", "rules"),
    [
        # flags alone
        ({"c.service": f"{UNIT}consul agent -data-dir=/opt/consul -bind=10.0.0.5"}, {"HD101 c.service:3"}),
        ({"c.service": f"{UNIT}consul agent -server=false -data-dir /a -retry-max=5 {JOINS}"}, {"HD102 c.service:3"}),
        ({"c.service": f"{UNIT}consul agent --data-dir /a --retry-join a --retry-max-wan 5"}, {"HD102 c.service:3"}),
        ({"c.service": f"{UNIT}consul agent -data-dir=/a -retry-max=0 {JOINS}"}, set()),
        ({"c.service": f"{UNIT}consul agent -data-dir=/a -server -bootstrap-expect 1"}, set()),
        ({"c.service": f"{UNIT}consul agent -data-dir=/a -server -bootstrap"}, set()),
        ({"c.service": f"{UNIT}consul agent -data-dir=/a -dev"}, set()),
        ({"c.service": f"{UNIT}consul agent -data-dir=/a -join=10.0.0.1"}, set()),
        # files of which the audit sees nothing, and a variable
        ({"c.service": f"{UNIT}consul agent -data-dir=/a -config-dir=/etc/consul.d"}, set()),
        ({"c.service": f"{UNIT}consul agent -data-dir=/a $MORE"}, set()),
        # flags and files
        (
            {
                "c.service": f"{UNIT}consul agent -config-dir=/etc/consul.d -retry-max=5 {JOINS}",
                "consul.d/a.hcl": AGENT,
            },
            {"HD102 c.service:3"},
        ),
        (
            {
                "c.service": f"{UNIT}consul agent -config-dir /etc/consul.d/ -retry-max=0",
                "consul.d/a.hcl": f'{AGENT}retry_max = 5\nretry_join = ["a"]\n',
            },
            set(),
        ),
        (
            {"c.service": f"{UNIT}consul agent -config-file=/etc/a.hcl {JOINS}", "x/a.hcl": f"{AGENT}retry_max = 5"},
            {"HD102 x/a.hcl:3"},
        ),
        (
            {"c.service": f"{UNIT}nomad agent -config=/etc/consul.d {JOINS}", "consul.d/a.hcl": AGENT},
            {"HD101 consul.d/a.hcl:2"},
        ),
        (
            {
                "c.service": f"{UNIT}consul agent -config-dir=/a/one.d -config-dir=/a/two.d",
                "one.d/a.hcl": AGENT,
                "two.d/b.hcl": 'retry_join = ["a"]\n',
            },
            set(),
        ),
        (
            {
                "a/c.service": f"{UNIT}consul agent -config-dir=/etc/consul.d {JOINS}",
                "a/consul.d/a.hcl": AGENT,
                "b/c.service": f"{UNIT}consul agent -config-dir=/etc/consul.d",
                "b/consul.d/a.hcl": AGENT,
            },
            {"HD101 b/consul.d/a.hcl:2"},
        ),
        (
            {
                "c.service": f"{UNIT}consul agent -config-dir=/etc/consul.d -retry-max=5 {JOINS}",
                "a/consul.d/a.hcl": AGENT,
                "b/consul.d/a.hcl": AGENT,
            },
            {"HD102 c.service:3"},
        ),
        (
            {
                "c.service": f"{UNIT}consul agent -server -datacenter=b -retry-join-wan=a -data-dir=/a {JOINS}",
                "x/a.hcl": 'server = true\nbootstrap_expect = 3\nretry_join = ["a"]\ndatacenter = "b"\n'
                'primary_datacenter = "a"\n',
            },
            set(),
        ),
        # variables
        (
            {
                "c.service": f"{UNIT}consul agent -data-dir=/a $MORE ${{LAST}}\n"
                "Environment='MORE=-retry-max=5 -retry-join=a' LAST=-ui"
            },
            {"HD102 c.service:3"},
        ),
        (
            {
                "c.service": f"{UNIT}consul agent -data-dir=/a $MORE\nEnvironmentFile=-/etc/consul.d/consul.env",
                "etc/consul.env": 'MORE="-retry-max=5 -retry-join=a"\n',
            },
            {"HD102 c.service:3"},
        ),
        # what stands before it
        (
            {"c.service": f"{UNIT}/bin/sudo -u consul -g consul -- /bin/consul agent -data-dir=/a"},
            {"HD101 c.service:3"},
        ),
        (
            {"c.service": f"{UNIT}/sbin/runuser -u consul -- env A=b nice -n 5 consul agent -data-dir=/a"},
            {"HD101 c.service:3"},
        ),
        ({"c.service": f"{UNIT}/bin/su - consul -c 'exec consul agent -data-dir=/a'"}, {"HD101 c.service:3"}),
        ({"c.service": f"{UNIT}/sbin/gosu consul consul agent -data-dir=/a"}, {"HD101 c.service:3"}),
        (
            {"c.service": f"{UNIT}/bin/bash -lc 'ulimit -n 9; timeout 99 consul lock -monitor-retry=0 a b'"},
            {"HD105 c.service:3"},
        ),
        # containers
        (
            {
                "c.service": "[Service]\n"
                "ExecStart=/usr/bin/docker run --rm --name nomad -v a:b hashicorp/nomad:1.10 agent"
            },
            {"HD501 c.service:2"},
        ),
        (
            {
                "c.service": "[Service]\n"
                "ExecStart=/bin/podman run -it --net host docker.io/hashicorp/vault@sha256:a server"
            },
            {"HD501 c.service:2"},
        ),
        ({"c.service": "[Service]\nExecStart=/usr/bin/docker run --restart=always hashicorp/consul agent"}, set()),
        ({"c.service": "[Service]\nExecStart=/usr/bin/docker run --name consul alpine agent"}, set()),
        ({"c.service": "[Service]\nExecStart=/usr/bin/nomad server members"}, set()),
        (
            {"c.service": f"{UNIT}docker run -d hashicorp/consul agent -server -data-dir=/a -retry-max=5"},
            {"HD102 c.service:3"},
        ),
        ({"c.service": f"{UNIT}docker run -e VAULT_MAX_RETRIES=0 -p 1:2 hashicorp/vault agent"}, {"HD302 c.service:3"}),
        (
            {
                "c.service": f"{UNIT}docker run -v /srv/x.d:/consul/config hashicorp/consul agent "
                f"-config-dir=/consul/config {JOINS}",
                "x.d/a.hcl": AGENT,
            },
            set(),
        ),
        (
            {"c.service": f"{UNIT}docker run --entrypoint /bin/sh hashicorp/consul -c 'consul agent -retry-max=3'"},
            {"HD102 c.service:3"},
        ),
        # other agents
        ({"n.service": f"{UNIT}{NOMAD_SERVER}"}, {"HD201 n.service:3"}),
        ({"n.service": f"{UNIT}{NOMAD_SERVER} {JOINS} -retry-max=3"}, {"HD202 n.service:3"}),
        ({"n.service": f"{UNIT}{NOMAD_SERVER} -join=10.0.0.1"}, {"HD203 n.service:3"}),
        (
            {
                "n.service": f"{UNIT}nomad agent -config=/etc/n -retry-max=3",
                "n/a.hcl": "server {\n  enabled = true\n}\n",
            },
            {"HD202 n.service:3"},
        ),
        ({"t.service": f"{UNIT}consul-template -vault-retry=false -template a:b"}, {"HD401 t.service:3"}),
        ({"t.service": f"{UNIT}consul-template -consul-retry-max-backoff 0s"}, {"HD402 t.service:3"}),
        ({"t.service": f"{UNIT}env VAULT_MAX_RETRIES=0 vault agent -config=/a"}, {"HD302 t.service:3"}),
        # a task of Nomad
        (
            {
                "j.nomad": 'job "a" {\n  type = "system"\n  group "b" {\n    task "c" {\n      driver = "docker"\n'
                '      config {\n        image = "hashicorp/consul:1.22"\n'
                '        args = ["agent", "-data-dir=/a", "-retry-max=3"]\n      }\n    }\n  }\n}\n'
            },
            {"HD102 j.nomad:6"},
        ),
    ],
)
def test_a_command_line_and_files_are_one_agent_for_every_rule(tmp_path, files, rules):
    write_files(tmp_path, files)
    result = audit([tmp_path])
    assert result.problems == []
    assert {
        f"{each.rule_id} {Path(each.path).relative_to(tmp_path)}:{each.place.line}" for each in result.findings
    } == rules


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("consul agent -data-dir=/a -config-dir=/etc/x.d", "/etc/x.d, which it also reads, is not among these files"),
        ("consul agent -config-dir=/etc/a.d -config-file=/etc/join.hcl", "/etc/join.hcl, which it also reads, is not"),
        ("docker run consul agent -data-dir=/a", "the configuration of its container is not among these files"),
        ("consul agent -data-dir=/a $MORE", "its command line contains a variable, which may hold any flag"),
    ],
)
def test_an_agent_whose_files_are_not_all_seen_is_muted_with_the_reason(tmp_path, command, why):
    (tmp_path / "c.service").write_text(UNIT + command)
    (tmp_path / "a.d").mkdir()
    (tmp_path / "a.d" / "a.hcl").write_text(AGENT if "a.d" in command else "")
    result = audit([tmp_path])
    assert result.findings == []
    assert [(finding.rule_id, why in reason) for finding, reason in result.muted] == [("HD101", True)]


def test_a_nomad_task_that_starts_a_shell_is_looked_into(tmp_path):
    task = 'config { command = "/bin/sh"\n args = ["-c", "exec consul lock -monitor-retry=0 a b"] }'
    job = f'job "a" {{ group "b" {{ task "c" {{ driver = "exec"\n {task} }} }} }}'.replace("{ ", "{\n").replace(
        " }", "\n}"
    )
    (tmp_path / "a.nomad").write_text(job)
    assert [finding.place.line > 1 for finding in found(tmp_path, "HD105")] == [True]


HEAD = "import time, consul, requests\nfrom tenacity import retry, stop_after_attempt, Retrying\nc = consul.Consul()\n"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@retry(stop=stop_after_attempt(3))\ndef f():\n    c.kv.get('x')\n", "under @retry(stop=stop_after_attempt("),
        ("again = retry(stop=stop_after_attempt(3))\n@again\ndef f():\n    c.kv.get('x')\n", "under @again on f"),
        ("from ours import with_backoff\n@with_backoff\ndef f():\n    c.kv.get('x')\n", "under @with_backoff on f"),
        (
            "while True:\n    try:\n        c.kv.get('x')\n        break\n    except OSError:\n        time.sleep(1)\n",
            "in the loop of line 4",
        ),
        (
            (
                "i = 0\nwhile True:\n"
                "    try:\n        i, _ = c.kv.get('x', index=i)\n    except OSError:\n        print()\n"
            ),
            "in the loop of line 5",
        ),
        ("kv = c.kv\nRetrying(stop=stop_after_attempt(3))(kv.get, 'x')\n", "by Retrying(stop=stop_after_attempt(3))"),
        ("c.http.session.mount('http://', Ours())\n", "an adapter is mounted on its session in line 4"),
        ("c.http.session.mount('http://', requests.adapters.HTTPAdapter(max_retries=ours))\n", "an adapter is mounted"),
    ],
)
def test_a_call_that_is_retried_mutes_the_rule_and_says_why(tmp_path, text, why):
    (tmp_path / "a.py").write_text(HEAD + text)
    result = audit([tmp_path])
    assert not [finding for finding in result.findings if finding.rule_id == "HD601"]
    [(finding, reason)] = [each for each in result.muted if each[0].rule_id == "HD601"]
    assert (finding.place.line, why in reason) == (3, True), reason


@pytest.mark.lie
@pytest.mark.parametrize(
    "text",
    [
        "",
        "c.kv.get('x')\n",
        "@retry(stop=stop_after_attempt(1))\ndef f():\n    c.kv.get('x')\n",
        "for key in 'ab':\n    try:\n        c.kv.get(key)\n    except OSError:\n        pass\n",
        "for _ in range(3):\n    try:\n        c.kv.get('x')\n    except OSError:\n        pass\n",
        "while True:\n    i = queue.get()\n    try:\n        c.kv.put('x', i)\n    except OSError:\n        pass\n",
        "while True:\n    try:\n        print()\n    except OSError:\n        c.kv.get('x')\n",
        "while True:\n    try:\n        break\n    except OSError:\n        pass\nc.kv.get('x')\n",
        "def f():\n    c.kv.get('x')\n@retry\ndef g():\n    f()\nf()\n",
        "from urllib3.util import Retry\na = requests.adapters.HTTPAdapter(max_retries=Retry(3))\nc.kv.get('x')\n",
        "c.http.session.mount('http://', requests.adapters.HTTPAdapter(pool_maxsize=9))\nc.kv.get('x')\n",
        "for delay in RETRY_DELAYS:\n    c.kv.get('x')\n",
    ],
)
def test_a_call_that_is_not_retried_is_found_whatever_is_retried_beside_it(tmp_path, text):
    (tmp_path / "a.py").write_text(HEAD + text)
    result = audit([tmp_path])
    assert [finding.place.line for finding in result.findings if finding.rule_id == "HD601"] == [3]
    assert not [each for each in result.muted if each[0].rule_id == "HD601"]


def test_the_lines_that_are_not_retried_are_named(tmp_path):
    text = "@retry(stop=stop_after_attempt(3))\ndef f():\n    c.kv.get('x')\nc.kv.put('x', '1')\n"
    (tmp_path / "a.py").write_text(HEAD + text)
    [finding] = found(tmp_path, "HD601")
    assert finding.message.endswith("nothing retries 1 of the lines that call it: 7")


def test_a_session_whose_making_is_not_seen_mutes_and_says_so(tmp_path):
    (tmp_path / "a.py").write_text("import hvac\nhvac.Client(session=theirs())\n")
    [(finding, reason)] = audit([tmp_path]).muted
    assert (finding.rule_id, "its session (theirs()) may retry, which is not seen here" in reason) == ("HD603", True)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("fixture", "why"),
    [
        ("near_miss_variable", "its command line contains a variable"),
        ("near_miss_unseen_flags", "flags that are not seen here"),
    ],
)
def test_an_agent_whose_flags_are_not_seen_is_muted_and_not_passed_over(fixture, why):
    muted = [reason for finding, reason in audit([FIXTURES / "HD101" / fixture]).muted if finding.rule_id == "HD101"]
    assert [why in reason for reason in muted] == [True]


def test_options_that_are_not_seen_mute_and_say_so(tmp_path):
    (tmp_path / "a.py").write_text("import consul\nc = consul.Consul(**options)\n")
    result = audit([tmp_path])
    assert not result.findings
    assert {finding.rule_id: "* or **" in reason for finding, reason in result.muted} == {"HD601": True, "HD602": True}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("adapter", "muted"),
    [
        ("HTTPAdapter(pool_maxsize=11)", False),
        ("HTTPAdapter(max_retries=0)", False),
        ("HTTPAdapter(1, 2, retry)", True),
        ("HTTPAdapter(**options)", True),
        ("OurAdapter()", True),
    ],
)
def test_a_session_with_an_adapter_retries_only_where_that_does(tmp_path, adapter, muted):
    """An adapter for a larger pool retries nothing."""
    lines = ["import hvac, requests", "from requests.adapters import HTTPAdapter", "s = requests.Session()"]
    lines += [f"a = {adapter}", "s.mount('https://', a)", "c = hvac.Client(session=s)", "c.read('x')"]
    (tmp_path / "a.py").write_text("\n".join(lines) + "\n")
    result = audit([tmp_path])
    assert [
        [f.place.line for f in found_ if f.rule_id == "HD603"]
        for found_ in ([finding for finding, _ in result.muted], result.findings)
    ] == ([[6], []] if muted else [[], [6]])


RETRY = "from urllib3.util import Retry\nfrom requests.adapters import HTTPAdapter\ns = requests.Session()\n"
GIVEN = "c = hvac.Client(session=s)\nc.read('x')\n"
INIT = "class C(hvac.Client):\n    def __init__(self, **options):\n        super().__init__({})\nC().read('x')\n"
MOUNT = "s.mount('https://', HTTPAdapter(max_retries=Retry(3)))\n"


@pytest.mark.parametrize(
    ("text", "muted"),
    [
        # a session that is put in later
        (f"{RETRY}{MOUNT}c = hvac.Client()\nc.session = s\nc.read('x')\n", True),
        (f"{RETRY}{MOUNT}c = hvac.Client()\nc.adapter.session = s\nc.read('x')\n", True),
        (f"{RETRY}c = hvac.Client()\nc.session = s\nc.read('x')\n", False),
        (f"{RETRY}{MOUNT}c = consul.Consul()\nc.http.session = s\nc.kv.get('x')\n", True),
        (f"{RETRY}{MOUNT}c = nomad.Nomad()\nc.jobs.session = s\nc.jobs.get_jobs()\n", True),
        (f"{RETRY}{MOUNT}c = nomad.Nomad()\nc.session = s\nc.jobs.get_jobs()\n", False),  # its APIs have their own
        ("def make(s):\n    c = hvac.Client()\n    c.session = s\n    return c\nmake(ours).read('x')\n", True),
        # another transport
        ("c = consul.Consul()\nc.http = OurHTTP()\nc.kv.get('x')\n", True),
        ("c = hvac.Client(adapter=OurAdapter)\nc.read('x')\n", True),
        ("c = hvac.Client(adapter=hvac.adapters.RawAdapter)\nc.read('x')\n", False),
        # an adapter that is told later, or that retries nothing
        (f"{RETRY}a = HTTPAdapter()\na.max_retries = Retry(3)\ns.mount('https://', a)\n{GIVEN}", True),
        (f"{RETRY}s.get_adapter('https://').max_retries = Retry(3)\n{GIVEN}", True),
        (f"{RETRY}s.mount('a', HTTPAdapter(max_retries=Retry(0)))\n{GIVEN}", False),
        (f"{RETRY}s.mount('a', HTTPAdapter(max_retries=Retry.from_int(0)))\n{GIVEN}", False),
        (f"{RETRY}s.mount('a', HTTPAdapter(max_retries=Retry(total=False)))\n{GIVEN}", False),
        # classes of one's own
        ("class C(consul.Consul):\n    pass\nC().kv.get('x')\n", False),
        ("class C(consul.Consul):\n    def one(self):\n        return self.kv.get('x')\n", False),
        ("class C(hvac.Client):\n    def one(self):\n        return self.read('x')\n", False),
        ("class N(nomad.Nomad):\n    '''Ours.'''\nclass M(N):\n    pass\nm = M()\nm.jobs.get_jobs()\n", False),
        ("class C(consul.Consul):\n    @again\n    def one(self):\n        return self.kv.get('x')\nC().one()\n", True),
        ("class C(consul.Consul):\n    def http_connect(self):\n        return OurHTTP()\nC().kv.get('x')\n", True),
        (INIT.format("**options"), True),
        (f"{RETRY}{MOUNT}" + INIT.format("session=s"), True),
        (RETRY + INIT.format("session=s"), False),
        ("class C(Ours):\n    pass\nC().kv.get('x')\n", None),
    ],
)
def test_a_client_retries_where_its_session_transport_or_class_may(tmp_path, text, muted):
    (tmp_path / "a.py").write_text(
        f"import consul, hvac, nomad, requests, tenacity\nagain = tenacity.retry(wait=1)\n{text}"
    )
    result = audit([tmp_path])
    without_retry = ("HD601", "HD603", "HD604")
    found_ = [finding for finding in result.findings if finding.rule_id in without_retry]
    muted_ = [reason for finding, reason in result.muted if finding.rule_id in without_retry]
    assert (len(found_), len(muted_)) == {True: (0, 1), False: (1, 0), None: (0, 0)}[muted], (found_, muted_)


@pytest.mark.parametrize(("text", "hits"), [("c.http.session = s\n", 1), ("c.http = OurHTTP()\n", 0)])
def test_a_transport_of_ones_own_may_have_a_timeout_and_a_session_has_none(tmp_path, text, hits):
    (tmp_path / "a.py").write_text(f"import consul\nc = consul.Consul()\n{text}")
    assert len(found(tmp_path, "HD602")) == hits


def test_a_timeout_that_a_class_gives_its_client_is_seen(tmp_path):
    text = INIT.replace("hvac.Client", "consul.Consul").replace("C().read('x')", "C()")
    for given, hits in (("5", 0), ("None", 1)):
        (tmp_path / "a.py").write_text(f"import consul\n{text}".format(f"connections_timeout={given}"))
        assert len(found(tmp_path, "HD602")) == hits


@pytest.mark.parametrize(
    ("text", "forever"),
    [
        ("@tenacity.retry(stop=tenacity.stop_never)\ndef f(): ...\n", True),
        ("from tenacity.stop import stop_never as on\ntenacity.Retrying(stop=on, wait=tenacity.wait_fixed(1))\n", True),
        ("from tenacity import *\n@retry(stop=stop_never)\ndef f(): ...\n", True),
        ("STOP = tenacity.stop_never\n@tenacity.retry(stop=STOP)\ndef f(): ...\n", True),
        ("@tenacity.retry(stop=tenacity.stop_any(tenacity.stop_never))\ndef f(): ...\n", True),
        ("@tenacity.retry(stop=tenacity.stop_never & tenacity.stop_after_attempt(3))\ndef f(): ...\n", True),
        ("@tenacity.retry(stop=tenacity.stop_never | tenacity.stop_after_attempt(3))\ndef f(): ...\n", False),
        ("@tenacity.retry(stop=tenacity.stop_all(tenacity.stop_never, OURS))\ndef f(): ...\n", True),
        ("@tenacity.retry(stop=tenacity.stop_after_attempt(float('inf')))\ndef f(): ...\n", True),
        ("import math\n@tenacity.retry(stop=tenacity.stop_after_delay(max_delay=math.inf))\ndef f(): ...\n", True),
        ("@tenacity.retry(stop=OURS)\ndef f(): ...\nf.retry_with(stop=tenacity.stop_never)()\n", True),
        ("@tenacity.retry(stop=tenacity.stop_after_attempt(3))\ndef f(): ...\nf.retry_with(wait=1)()\n", False),
        ("STOP = tenacity.stop_after_attempt(3)\n@tenacity.retry(stop=STOP)\ndef f(): ...\n", False),
        ("class R(tenacity.Retrying):\n    pass\nR()\n", True),
        ("from ours import STOP\n@tenacity.retry(stop=STOP)\ndef f(): ...\n", False),
    ],
)
def test_a_stop_that_never_stops_is_none(tmp_path, text, forever):
    (tmp_path / "a.py").write_text(f"import tenacity\n{text}")
    assert len(found(tmp_path, "HD617")) == forever


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Retry.from_int(3)\n", True),
        ("Retry.from_int(retries=3, redirect=False)\n", True),
        ("HTTPAdapter(max_retries=Retry.from_int(3))\n", True),
        ("urllib3.PoolManager(retries=3)\n", True),
        ("urllib3.HTTPSConnectionPool('a', retries=5)\n", True),
        ("class R(Retry):\n    pass\nR(3)\n", True),
        ("Retry.from_int(0)\n", False),
        ("Retry.from_int(False)\n", False),
        ("Retry.from_int(ours)\n", False),
        ("urllib3.PoolManager(retries=False)\n", False),
        ("urllib3.PoolManager(retries=Retry(3, status_forcelist=[503], backoff_factor=1))\n", False),
        ("class R(Retry):\n    DEFAULT_BACKOFF_MAX = 9\nR(3)\n", False),
    ],
)
def test_a_number_that_becomes_a_retry_has_neither_statuses_nor_pauses(tmp_path, text, bare):
    (tmp_path / "a.py").write_text(
        f"import urllib3\nfrom urllib3 import Retry\nfrom requests.adapters import HTTPAdapter\n{text}"
    )
    assert [len(found(tmp_path, rule_id)) for rule_id in ("HD611", "HD612")] == [bare, bare]


def test_what_a_modules_own_helper_calls_again_is_retried(tmp_path):
    again = (
        "def again(f, *a):\n    for _ in range(3):\n        try:\n            return f(*a)\n        except OSError:\n"
    )
    text = f"{again}            time.sleep(1)\nagain(c.kv.get, 'x')\nagain(lambda: c.kv.get('y'))\n"
    (tmp_path / "a.py").write_text(HEAD + text)
    assert {reason for finding, reason in audit([tmp_path]).muted if finding.rule_id == "HD601"} == {
        "its 2 calls are retried by again (line 4)"
    }
    (tmp_path / "a.py").write_text(HEAD + text.replace("return f(*a)", "return a").replace("time.sleep(1)", "f()"))
    assert [finding.place.line for finding in found(tmp_path, "HD601")] == [3]


@pytest.mark.parametrize(
    "text",
    [
        "def f(g):\n    f(g())\nf(c.kv.get)\n",
        "def f(g):\n    h(lambda: g())\ndef h(g):\n    f(lambda: g())\nh(lambda: c.kv.get('x'))\n",
        "def f():\n    g()\ndef g():\n    f()\n    c.kv.get('x')\n",
        "c = c\nd = c\nc = d\nd.kv.get('x')\n",
        "def c():\n    return c()\nc().kv.get('x')\n",
    ],
)
def test_code_that_goes_round_in_circles_ends(tmp_path, text):
    (tmp_path / "a.py").write_text(HEAD + text)
    assert [finding.place.line for finding in found(tmp_path, "HD601")] == [3]


def test_clients_of_two_classes_are_told_apart_by_their_class(tmp_path):
    made = "    def __init__(self):\n        self.c = consul.Consul()\n"
    bare = f"class A:\n{made}    def go(self):\n        self.c.status()\n"
    good = bare.replace("class A", "class B").replace(
        "    def go", "    @retry(stop=stop_after_attempt(3))\n    def go"
    )
    (tmp_path / "a.py").write_text(HEAD + bare + good)
    result = audit([tmp_path])
    assert [finding.place.line for finding in result.findings if finding.rule_id == "HD601"] == [3, 6]
    assert [finding.place.line for finding, _ in result.muted if finding.rule_id == "HD601"] == [11]
