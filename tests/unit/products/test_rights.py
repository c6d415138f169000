"""Rights: every kind of the products declares them, policies say them, and a token that lacks one is told which."""

import json

import anyio
import pytest

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.rights import reasons, rights_of, together
from hashidrill.core.faults.base import BaseFault
from hashidrill.core.loads.base import BaseLoad
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.protocols.rights import Right
from hashidrill.kubernetes.rbac import SERVICE as KUBERNETES
from hashidrill.products.consul import rights as consul
from hashidrill.products.nomad import rights as nomad
from hashidrill.products.vault import rights as vault

PRODUCTS = {"consul": consul, "nomad": nomad, "vault": vault}


def kinds_of_products():
    every = (*registry.faults().items(), *registry.loads().items())
    return [cls for kind, cls in every if kind.partition(".")[0] in PRODUCTS]


def undeclared(classes):
    return [cls.kind for cls in classes if not hasattr(cls, "rights")]


@pytest.mark.lie
def test_every_kind_of_the_products_declares_its_rights():
    assert len(kinds_of_products()) > 30
    assert undeclared(kinds_of_products()) == []


def test_one_that_does_not_is_found():
    """Planted."""

    class Silent(BaseFault):
        kind = "consul.silent"

    class Quiet(BaseLoad):
        kind = "consul.quiet"

    assert undeclared([Silent, Quiet]) == ["consul.silent", "consul.quiet"]


@pytest.mark.parametrize("cls", kinds_of_products(), ids=lambda cls: cls.kind)
def test_they_are_rights_of_products_that_can_say_and_check_them(cls, experiments_using):
    for needed in experiments_using(cls.kind):
        assert {right.service for right in needed} <= {*PRODUCTS, KUBERNETES}


@pytest.fixture(scope="module")
def experiments_using():
    from places import ROOT

    by_kind = {}
    for path in sorted((ROOT / "experiments").rglob("*.yaml")):
        if "bases" in path.parts:
            continue
        resolved = resolve(path)
        rights = rights_of(resolved.experiment)
        kinds = {step.fault for step in resolved.experiment.faults}
        kinds |= {load.kind for load in resolved.experiment.load.values()}
        for kind in kinds:
            by_kind.setdefault(kind, []).append(rights)
    return lambda kind: by_kind.get(kind, [])


@pytest.fixture(scope="module")
def slow_leader():
    return resolve(find_experiment("raft/slow-leader-disk")).experiment


def test_an_experiment_needs_what_its_parts_need_and_who_is_told(slow_leader):
    needed = rights_of(slow_leader, {"interlocks": [Right("consul", "key", "armed")]})
    assert needed[Right("consul", "key_prefix", "hashidrill/kv-writes/", "write")] == ["consul.kv.write (kv-writes)"]
    assert needed[Right("consul", "operator")] == ["probes and selectors of consul"]
    assert needed[Right("consul", "key", "armed")] == ["interlocks"]
    assert not [right for right in needed if right.resource == "acl"], "a slow disk needs no snapshot"


def test_several_experiments_need_what_each_needs(slow_leader):
    one = rights_of(slow_leader)
    two = {Right("consul", "operator"): ["x"], Right("consul", "acl"): ["y"]}
    both = together([one, two])
    assert both[Right("consul", "operator")] == ["probes and selectors of consul", "x"]
    assert both.keys() == one.keys() | two.keys()


# policies

RIGHTS = [
    Right("consul", "key_prefix", "hashidrill/kv/", "write"),
    Right("consul", "key_prefix", "hashidrill/kv/", "read"),
    Right("consul", "operator", "", "read"),
    Right("consul", "node_prefix", "", "read"),
    Right("nomad", "namespace", "default", "submit-job"),
    Right("nomad", "namespace", "default", "read-job"),
    Right("nomad", "node", "", "write"),
    Right("nomad", "node", "", "read"),
    Right("vault", "path", "sys/seal", "update"),
    Right("vault", "path", "sys/seal", "sudo"),
]
WHY = dict.fromkeys(RIGHTS, "for x")


def test_a_policy_of_consul_has_the_stronger_of_two_rules():
    assert consul.policy(RIGHTS, WHY) == (
        '# for x\nkey_prefix "hashidrill/kv/" {\n  policy = "write"\n}\n'
        '# for x\nnode_prefix "" {\n  policy = "read"\n}\n'
        '# for x\noperator = "read"\n'
    )


def test_a_policy_of_nomad_has_capabilities_and_the_strongest_policies():
    assert nomad.policy(RIGHTS, WHY) == (
        'namespace "default" {\n  capabilities = [\n    "read-job", # for x\n    "submit-job", # for x\n  ]\n}\n'
        '# for x\nnode {\n  policy = "write"\n}\n'
    )
    assert "needs a management token" in nomad.policy([nomad.STATE], {nomad.STATE: "for nomad.snapshot.save"})


def test_a_policy_of_vault_has_the_capabilities_of_each_path():
    assert vault.policy(RIGHTS, WHY) == '# for x\npath "sys/seal" {\n  capabilities = ["sudo", "update"]\n}\n'


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_no_rights_are_no_policy(name):
    assert PRODUCTS[name].policy([], {}) == ""


# what a token lacks


class Agent:
    """Answers what it was given, and notes what it was asked."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    async def request(self, method, path, *, params=None, body=None, timeout_s=5.0):
        self.asked.append((method, path, json.loads(body) if body else None))
        answer = self.answers(path, self.asked[-1][2]) if callable(self.answers) else self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        status, said = answer if isinstance(answer, tuple) else (200, answer)
        return ApiAnswer(status, said if isinstance(said, bytes) else json.dumps(said).encode())


def lacking(module, answers, rights=RIGHTS):
    agent = Agent(answers)
    return anyio.run(module.lacking, agent, rights), agent


def of(service):
    return sorted({right for right in RIGHTS if right.service == service})


def test_consul_is_asked_about_each_right_at_once_and_says_which_is_missing():
    def answers(path, body):
        assert path == "/v1/internal/acl/authorize"
        return [{**one, "Allow": one["Resource"] != "operator"} for one in body]

    missing, agent = lacking(consul, answers)
    assert missing == [Right("consul", "operator", "", "read")]
    [(_, _, asked)] = agent.asked
    assert {"Resource": "key", "Segment": "hashidrill/kv/", "Access": "write-prefix"} in asked
    assert {"Resource": "node", "Segment": "~check", "Access": "read"} in asked


def test_a_rule_for_something_narrower_does_not_answer_for_all():
    """The lie: a token that may write services called hashidrill passes for one that may read all of them."""

    def answers(_, body):
        return [{"Allow": one["Segment"].startswith("hashidrill")} for one in body]

    everything = consul.right("service_prefix")
    assert lacking(consul, answers, [everything, consul.right("service_prefix", "hashidrill")])[0] == [everything]


def test_many_rights_take_several_questions():
    many = [consul.keys(f"{n:03d}/") for n in range(130)]
    missing, agent = lacking(consul, lambda _, body: [{"Allow": n > 0} for n, _ in enumerate(body)], many)
    assert missing == [many[0], many[64], many[128]]
    assert len(agent.asked) == 3


def test_a_consul_without_acls_lacks_nothing():
    assert lacking(consul, lambda *_: (401, b"ACL support disabled"))[0] == []


POLICIES = {
    "/v1/acl/token/self": {"Type": "client", "Policies": ["a"], "Roles": [{"ID": "r1"}]},
    "/v1/acl/role/r1": {"Policies": [{"Name": "b"}]},
    "/v1/acl/policy/a": {"RulesJSON": {"Namespaces": [{"Name": "def*", "Capabilities": ["read-job"]}]}},
    "/v1/acl/policy/b": {"RulesJSON": {"Node": {"Policy": "write"}}},
}


def test_nomad_is_judged_by_the_policies_of_its_token_and_of_its_roles():
    assert lacking(nomad, POLICIES)[0] == [Right("nomad", "namespace", "default", "submit-job")]


def test_a_policy_that_denies_allows_nothing_whatever_else_it_says():
    denied = {"Namespaces": [{"Name": "default", "Capabilities": ["deny", "submit-job", "read-job"]}]}
    answers = {**POLICIES, "/v1/acl/policy/a": {"RulesJSON": denied}}
    assert len(lacking(nomad, answers)[0]) == 2


def test_a_namespace_by_its_name_goes_before_a_pattern():
    rules = {
        "Namespaces": [
            {"Name": "*", "Capabilities": ["submit-job"]},
            {"Name": "default", "Capabilities": ["read-job"]},
        ]
    }
    answers = {**POLICIES, "/v1/acl/policy/a": {"RulesJSON": rules}}
    assert lacking(nomad, answers)[0] == [Right("nomad", "namespace", "default", "submit-job")]


def test_read_allows_no_write():
    answers = {**POLICIES, "/v1/acl/policy/b": {"RulesJSON": {"Node": {"Policy": "read"}}}}
    assert Right("nomad", "node", "", "write") in lacking(nomad, answers)[0]
    assert Right("nomad", "node", "", "read") not in lacking(nomad, answers)[0]


def test_a_management_token_and_a_nomad_without_acls_lack_nothing():
    assert lacking(nomad, {"/v1/acl/token/self": {"Type": "management"}}, [nomad.STATE])[0] == []
    assert lacking(nomad, {"/v1/acl/token/self": (400, b"ACL support disabled")})[0] == []
    disabled = {"AccessorID": "acls-disabled", "Name": "ACLs disabled token", "Type": "client", "Policies": None}
    assert lacking(nomad, {"/v1/acl/token/self": disabled})[0] == []


def test_no_policy_of_nomad_is_enough_for_its_state():
    assert lacking(nomad, POLICIES, [nomad.STATE])[0] == [nomad.STATE]


def test_vault_is_asked_for_its_capabilities_on_each_path():
    missing, agent = lacking(vault, lambda *_: {"data": {"sys/seal": ["update"]}, "sys/seal": ["update"]})
    assert missing == [Right("vault", "path", "sys/seal", "sudo")]
    assert agent.asked == [("POST", "/v1/sys/capabilities-self", {"paths": ["sys/seal"]})]


def test_a_path_with_a_star_is_asked_about_by_a_name_below_it():
    rights = vault.path("hashidrill/data/*", "read")
    missing, agent = lacking(vault, lambda *_: {"hashidrill/data/~check": ["root"]}, rights)
    assert missing == []
    assert agent.asked[0][2] == {"paths": ["hashidrill/data/~check"]}


@pytest.mark.lie
@pytest.mark.parametrize("name", sorted(PRODUCTS))
@pytest.mark.parametrize(
    "answer",
    [(403, b"Permission denied"), (500, b"no leader"), (200, b"null"), (200, b"not json"), FaultError("silent")],
)
def test_a_product_that_does_not_say_stops_the_run_with_a_message(name, answer):
    """The lie: nothing was said to be missing."""
    with pytest.raises(InterlockError, match=f"{name.title()} did not say what its token may do"):
        lacking(PRODUCTS[name], lambda *_: answer)


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_a_product_of_which_nothing_is_needed_is_not_told_to_lack_anything(name):
    answers = {"nomad": {"Type": "client"}, "consul": [], "vault": {}}[name]
    assert lacking(PRODUCTS[name], lambda *_: answers, [])[0] == []


def test_reasons_name_everybody():
    assert reasons({Right("consul", "operator"): ["a", "b"]}) == {Right("consul", "operator"): "for a, b"}


def test_a_right_reads_as_a_person_would_say_it():
    assert str(Right("consul", "key_prefix", "hashidrill/", "write")) == 'key_prefix "hashidrill/": write'
    assert str(Right("consul", "operator")) == "operator: read"
    assert str(Right("consul", "node_prefix")) == 'node_prefix "": read'


def test_nomads_leader_is_moved_by_a_management_token_alone():
    """Of an operator with write, Nomad 1.10.5 takes neither the question for the voters nor the transfer."""
    cls = registry.fault("nomad.leader.transfer")
    assert nomad.STATE in cls(cls.Params(), None).rights()


@pytest.mark.parametrize("kind", ["nomad.node.eligibility", "nomad.node.drain"])
def test_to_plan_a_job_takes_the_right_to_submit_one(kind):
    """Their observer asks the scheduler for a plan: without it, they were refused after they were in force."""
    cls = registry.fault(kind)
    assert Right("nomad", "namespace", "default", "submit-job") in cls(cls.Params(), None).rights()
