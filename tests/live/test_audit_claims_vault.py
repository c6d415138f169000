"""What the audit says of Vault and its agent, shown on Vault 1.21.0, each claim beside its opposite."""

import json

import httpx2
import pytest

from claims import Naps, run  # noqa: F401 - `run` is a fixture
from http_scripts import Answer, Scripted, failing
from polled import wait
from ports import free_ports

pytestmark = pytest.mark.vault

WITHIN_S = 60
UNAVAILABLE = Answer(500, b'{"errors": ["error performing token check"]}')
SECRET = Answer(body=b'{"data": {"key": "value"}, "lease_duration": 3600}')
TOKEN = Answer(body=b'{"data": {"id": "t", "type": "service", "renewable": false, "ttl": 3600}}')


@pytest.fixture(scope="module")
def vault(binary):
    return binary("vault")


# its client


def reads(server):
    return [one for one in server.seen if one.path.startswith("/v1/secret/key")]


@pytest.mark.parametrize(
    ("environment", "requests"), [({"VAULT_MAX_RETRIES": "0"}, 1), ({"VAULT_MAX_RETRIES": "2"}, 3)]
)
@pytest.mark.parametrize("status", [500, 503, 412])
def test_without_retries_a_single_error_reaches_the_caller(vault, run, environment, requests, status):  # noqa: F811
    """HD302: the same fault, that lasts for two requests."""
    fault = Answer(status, UNAVAILABLE.body)
    with Naps() as naps, Scripted(failing(2, fault, SECRET)) as server:
        program = run(
            "read", vault.path, "read", f"-address={server.url}", "secret/key", VAULT_TOKEN="t", **environment
        )
        assert (program.ended(WITHIN_S) == 0) is (requests == 3)
        assert len(reads(server)) == requests
        came = [one.at for one in reads(server)]
    if len(came) > 1:
        first, second = came[1] - came[0], came[2] - came[1]
        assert 1 <= first < 2 + naps.late_s(came[0], came[1])
        assert 2 <= second < 3.5 + naps.late_s(came[1], came[2])


def test_vaults_own_command_line_retries_only_when_it_is_told_to(vault, run):  # noqa: F811
    """HD302: the default of two is that of Vault's client in other programs."""
    with Scripted(failing(9, UNAVAILABLE)) as server:
        assert run("read", vault.path, "read", f"-address={server.url}", "secret/key", VAULT_TOKEN="t").ended(WITHIN_S)
        assert len(reads(server)) == 1


# its agent


def answers(fault, times):
    """A Vault that knows a token and a secret; the first `times` reads of the secret get the fault."""
    count = iter(range(10**6))

    def answer(_number, request):
        if not request.path.startswith("/v1/secret/key"):
            return TOKEN
        return fault if next(count) < times else SECRET

    return answer


@pytest.fixture
def agent(vault, run, tmp_path):  # noqa: F811
    """Starts a Vault Agent that renders a secret of that server, and listens at `agent.url`."""

    def start(server, *, retry=None, template=True, template_config=None, **environment):
        [port] = free_ports(1)
        (tmp_path / "token").write_text("t")
        method = {"type": "token_file", "config": {"token_file_path": str(tmp_path / "token")}}
        contents = '{{ with secret "secret/key" }}{{ .Data.key }}{{ end }}'
        document = {
            "vault": {"address": server.url, **({"retry": retry} if retry is not None else {})},
            "auto_auth": {"method": [method]},
            "listener": [{"tcp": {"address": f"127.0.0.1:{port}", "tls_disable": True}}],
            "api_proxy": {"use_auto_auth_token": True},
        }
        if template:
            document["template"] = [{"contents": contents, "destination": str(tmp_path / "rendered")}]
        if template_config:
            document["template_config"] = template_config
        (tmp_path / "agent.json").write_text(json.dumps(document))
        program = run(f"agent-{port}", vault.path, "agent", "-config", tmp_path / "agent.json", **environment)
        program.url = f"http://127.0.0.1:{port}"
        return program

    return start


def test_an_agent_without_retries_gives_a_template_up_at_the_first_error(agent, tmp_path):
    """HD303: told nothing, it retries the same."""
    with Scripted(answers(UNAVAILABLE, 10**6)) as server:
        none = agent(server, retry={"num_retries": -1}, VAULT_MAX_RETRIES="0")
        wait("the template to be given up", lambda: none.said("template server error"), within_s=WITHIN_S)
        assert not none.said(r"retry attempt 1 ")
    with Scripted(answers(UNAVAILABLE, 2)) as server:
        default = agent(server, VAULT_MAX_RETRIES="0")
        wait("the secret", (tmp_path / "rendered").exists, within_s=WITHIN_S)
        assert len(default.said(r"retry attempt \d+ ")) == 2
        assert not default.said("template server error")


@pytest.mark.parametrize(("retry", "requests", "status"), [(-1, 1, 500), (0, 3, 200), (1, 2, 500)])
def test_minus_one_turns_the_retries_of_an_agents_listener_off_and_0_does_not(agent, retry, requests, status):
    """HD303: Vault fails twice; the caller of the listener gets the error, or does not see that there was one."""
    with Scripted(answers(UNAVAILABLE, 2)) as server:
        program = agent(server, retry={"num_retries": retry}, template=False)

        def ask():
            try:
                return httpx2.get(f"{program.url}/v1/secret/key", timeout=30)
            except httpx2.ConnectError:
                return None

        assert wait("the listener", ask, within_s=WITHIN_S).status_code == status
        assert len(reads(server)) == requests


@pytest.mark.parametrize("exits", [False, True])
def test_an_agent_whose_templates_fail_lives_on_unless_told_otherwise(agent, exits):
    """HD304: the retries of a template are used up."""
    told = {"exit_on_retry_failure": True} if exits else None
    with Scripted(answers(UNAVAILABLE, 10**6)) as server:
        program = agent(server, retry={"num_retries": 1}, template_config=told, VAULT_MAX_RETRIES="0")
        if exits:
            assert program.ended(WITHIN_S) != 0
        else:
            wait("it to start again", lambda: len(program.said("template server error")) >= 2, WITHIN_S)
            assert program.alive
        assert program.said("template server error")


# its servers


class Server:
    """A Vault server with raft storage; `join` are the others that it is told of."""

    def __init__(self, binary, run, folder, name, *join):  # noqa: F811
        port, cluster = free_ports(2)
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        (folder / name).mkdir()
        raft = {"path": str(folder / name), "node_id": name, "retry_join": [{"leader_api_addr": url} for url in join]}
        document = {
            "disable_mlock": True,
            "api_addr": self.url,
            "cluster_addr": f"https://127.0.0.1:{cluster}",
            "listener": [
                {
                    "tcp": {
                        "address": f"127.0.0.1:{port}",
                        "cluster_address": f"127.0.0.1:{cluster}",
                        "tls_disable": True,
                    }
                }
            ],
            "storage": {"raft": raft if join else {key: raft[key] for key in ("path", "node_id")}},
        }
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document))
        self.program = run(name, binary.path, "server", "-config", file)
        wait(f"{name} to answer", self.status, within_s=WITHIN_S)

    def call(self, method, path, token="", **body):
        answer = httpx2.request(
            method, f"{self.url}/v1/{path}", json=body or None, headers={"X-Vault-Token": token}, timeout=30
        )
        return answer.status_code, answer.json() if answer.content else {}

    def status(self):
        try:
            return self.call("GET", "sys/seal-status")[1]
        except httpx2.HTTPError:
            return None


def test_a_node_without_retry_join_joins_nobody(vault, run, tmp_path):  # noqa: F811
    """HD301: of two new nodes the one with retry_join becomes a member; both get nothing but the unseal key."""
    first = Server(vault, run, tmp_path, "first")
    told, alone = (Server(vault, run, tmp_path, name, *join) for name, join in (("told", [first.url]), ("alone", [])))
    _, made = first.call("PUT", "sys/init", secret_shares=1, secret_threshold=1)
    key, token = made["keys_base64"][0], made["root_token"]
    first.call("PUT", "sys/unseal", key=key)

    def members():
        status, answer = first.call("GET", "sys/storage/raft/configuration", token)
        return {each["node_id"] for each in answer["data"]["config"]["servers"]} if status == 200 else set()

    wait("the first to lead", lambda: members() == {"first"}, within_s=WITHIN_S)

    def unsealed():
        told.call("PUT", "sys/unseal", key=key)
        return None if told.status()["sealed"] else True

    wait("the node with retry_join", unsealed, within_s=WITHIN_S)
    wait("its membership", lambda: members() == {"first", "told"}, within_s=WITHIN_S)
    assert alone.call("PUT", "sys/unseal", key=key)[0] == 400
    assert alone.status()["initialized"] is False
    assert not alone.program.said("attempting to join possible raft leader node")
    assert told.program.said("attempting to join possible raft leader node")


@pytest.mark.parametrize("enabled", [False, True])
def test_a_429_of_vault_has_a_retry_after_only_when_that_is_turned_on(vault, run, enabled):  # noqa: F811
    """HD611: what a urllib3 Retry without status_forcelist would need, in order to retry it."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/v1"
    token = {"X-Vault-Token": "root"}
    run("dev", vault.path, "server", "-dev", "-dev-root-token-id=root", f"-dev-listen-address=127.0.0.1:{port}")

    def answers_it():
        try:
            return httpx2.get(f"{url}/sys/health", timeout=5).status_code == 200 or None
        except httpx2.HTTPError:
            return None

    wait("the server", answers_it, within_s=WITHIN_S)
    with httpx2.Client(base_url=url, headers=token, timeout=30) as client:
        assert client.post("/sys/quotas/config", json={"enable_rate_limit_response_headers": enabled}).is_success
        assert client.post("/sys/quotas/rate-limit/all", json={"rate": 1, "interval": "1m"}).is_success
        found = [client.get("/secret/data/key") for _ in range(5)]
    refused = [answer for answer in found if answer.status_code == 429]
    assert refused
    assert {"Retry-After" in answer.headers for answer in refused} == {enabled}
