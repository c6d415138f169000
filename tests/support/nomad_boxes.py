"""A real Nomad over boxes of ours: a server in one, clients in others, whose tasks are root there, as on real hosts.

Clients of a datacenter of ours are an ordinary user's, and so are their tasks: those put nothing on a host. Here each
client sees a file system without /sys, in which Nomad finds no cgroups of the machine's, and a `nobody` who is root.
"""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import trustme

from boxes import PATIENCE_S, environment, wait_for

PORT = 4646
_RELAY = """
import socket, sys, threading
listener = socket.socket(fileno=int(sys.argv[1]))
def pump(one, other):
    try:
        while said := one.recv(65536):
            other.sendall(said)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
while True:
    here, _ = listener.accept()
    try:
        there = socket.create_connection((sys.argv[2], int(sys.argv[3])), 5)
    except OSError:
        here.close()
        continue
    for ends in ((here, there), (there, here)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
"""
_ROOT = """
mount -t tmpfs none "$1" && cd / || exit 1
for one in *; do
    if [ "$one" = sys ]; then mkdir "$1/sys"
    elif [ -L "$one" ]; then cp -P "$one" "$1/$one"
    elif [ -d "$one" ]; then mkdir "$1/$one" && mount --rbind "/$one" "$1/$one" || exit 1
    fi
done
mount --bind "$2" "$1/etc/passwd" || exit 1
shift 2
exec chroot "$root" "$@"
"""


class Here:
    """This machine, where a box is expected."""

    start = staticmethod(subprocess.Popen)


class Relay:
    """A port of this machine's loopback that leads to one in a box. Stopped, it is a network that loses everything."""

    def __init__(self, box, address, port):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        command = [sys.executable, "-c", _RELAY, str(listener.fileno()), address, str(port)]
        self.process = box.start(command, pass_fds=(listener.fileno(),))
        listener.close()

    def cut(self):
        self.process.send_signal(signal.SIGSTOP)

    def mend(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.mend()
        self.process.kill()
        self.process.wait()


class Nomad:
    """`hosts`: address by name; the first is the server's, and the others have a client each.

    `secure`: TLS with certificates for both sides, and ACLs; `management` is the token of its operators.
    """

    def __init__(self, binary, folder, boxes, hosts, *, secure=False):
        self._binary, self._folder, self._boxes = binary, folder, boxes
        self.management = str(uuid.uuid4()) if secure else ""
        self._bootstrapped = not secure
        if secure:
            ca = trustme.CA()
            ca.cert_pem.write_to_path(self.pem("ca"))
            both = ca.issue_cert(
                "server.global.nomad", "client.global.nomad", "localhost", "127.0.0.1", *hosts.values()
            )
            both.private_key_pem.write_to_path(self.pem("key"))
            both.cert_chain_pems[0].write_to_path(self.pem("cert"))
        server, *clients = hosts
        self._agents, self._commands = {}, {}
        for name, address in hosts.items():
            self._commands[name] = self._written(name, address, hosts[server], client=name != server)
            self.start(name)
        self.relay = Relay(boxes[server], hosts[server], PORT)
        self.url = f"http{'s' if secure else ''}://127.0.0.1:{self.relay.port}"
        self._clients = clients
        self.wait()

    def pem(self, name):
        return str(self._folder / f"nomad-{name}.pem")

    def token(self, rules):
        """The secret of one that may do that."""
        name = f"least-{uuid.uuid4()}"
        self.ask(f"/v1/acl/policy/{name}", "POST", {"Name": name, "Rules": rules})
        made = self.ask("/v1/acl/token", "POST", {"Name": name, "Type": "client", "Policies": [name]})
        return made["SecretID"]

    def wait(self):
        wait_for(self._ready, f"the clients of Nomad, see {self._folder}")

    def start(self, name):
        home = self._folder / f"nomad-{name}"
        with (home / "log").open("ab") as log:
            self._agents[name] = self._boxes[name].start(
                self._commands[name], stdout=log, stderr=log, env=environment() | {"TMPDIR": str(home)}
            )

    def kill(self, name):
        """Its agent, and not what it has started."""
        self._agents[name].kill()
        self._agents[name].wait()

    def close(self):
        """Ends what Nomad's agents that were killed have left of Nomad's own, and no task."""
        mark = f"TMPDIR={self._folder}/nomad-".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[1:2] in ([b"executor"], [b"logmon"]) and mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    def _written(self, name, address, server, *, client):
        """The command of an agent, whose files are written."""
        home = self._folder / f"nomad-{name}"
        home.mkdir()
        config = {
            "name": name,
            "datacenter": "staging",
            "data_dir": str(home / "data"),
            "bind_addr": address,
            "advertise": dict.fromkeys(("http", "rpc", "serf"), address),
            "disable_update_check": True,
            "consul": {"server_auto_join": False, "client_auto_join": False, "auto_advertise": False},
        }
        if client:
            config["client"] = {
                "enabled": True,
                "servers": [f"{server}:4647"],
                "network_interface": "eth0",
                "cpu_total_compute": 4000,
                "memory_total_mb": 4096,
                "cpu_disable_dmidecode": True,
                "gc_disk_usage_threshold": 99,
                "gc_inode_usage_threshold": 99,
                "options": {
                    "fingerprint.denylist": "env_aws,env_azure,env_digitalocean,env_gce,cni,plugins_cni,bridge",
                    "driver.allowlist": "raw_exec",
                },
            }
            config["plugin"] = {"raw_exec": [{"config": {"enabled": True}}]}
        else:
            config["server"] = {"enabled": True, "bootstrap_expect": 1, "raft_multiplier": 1}
        if self.management:
            config |= {
                "acl": {"enabled": True},
                "tls": {
                    "http": True,
                    "rpc": True,
                    "verify_server_hostname": True,
                    "verify_https_client": True,
                    "ca_file": self.pem("ca"),
                    "cert_file": self.pem("cert"),
                    "key_file": self.pem("key"),
                },
            }
        file = home / "config.json"
        file.write_text(json.dumps(config))
        (home / "passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:0:0::/:/bin/false\n")
        (home / "root").mkdir()
        agent = [str(self._binary), "agent", f"-config={file}"]
        if client:
            agent = [
                "unshare",
                "--mount",
                "sh",
                "-c",
                _ROOT.replace("$root", str(home / "root")),
                "root",
                str(home / "root"),
                str(home / "passwd"),
                *agent,
            ]
        return agent

    def ask(self, path, method="GET", body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data)
        context = None
        if self.management:
            request.add_header("X-Nomad-Token", self.management)
            context = ssl.create_default_context(cafile=self.pem("ca"))
            context.load_cert_chain(self.pem("cert"), self.pem("key"))
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as said:
            return json.loads(said.read() or b"null")

    def _ready(self):
        try:
            if not self._bootstrapped:
                self.ask("/v1/acl/bootstrap", "POST", {"BootstrapSecret": self.management})
                self._bootstrapped = True
            nodes = self.ask("/v1/nodes")
        except OSError:
            return False
        fit = {one["Name"] for one in nodes if one["Status"] == "ready" and one["Drivers"]["raw_exec"]["Healthy"]}
        return fit >= set(self._clients)

    def jobs(self):
        """Of ours, as its own API says."""
        return [one["ID"] for one in self.ask("/v1/jobs?prefix=hashidrill")]
