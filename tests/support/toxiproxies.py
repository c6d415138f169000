"""Toxiproxies of somebody else."""

import json
import subprocess
import urllib.request
from contextlib import contextmanager

from drills import hashidrill
from polled import wait
from ports import free_ports, is_free


@contextmanager
def served(toxiproxy, address, port, *options):
    """A toxiproxy; yields the URL of its API once that answers."""
    url = f"http://{address}:{port}"
    server = subprocess.Popen(
        [str(toxiproxy), "-host", address, "-port", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait("a toxiproxy that answers", lambda: proxies_of(url) is not None, 30)
        yield url
    finally:
        server.kill()
        server.wait()


@contextmanager
def in_links(toxiproxy, attach_file, folder, env):
    """One that stands in the links of an estate, as `staging proxies` has it; yields the URL of its API."""
    address = "127.77.9.9"
    api, *others = free_ports(12, [address])
    first = next(port for port in others if all(is_free(address, port + n) for n in range(10)))
    where = ("--listen", address, "--first-port", first)
    plan = hashidrill("staging", "proxies", "--attach", attach_file, *where, env=env)
    assert plan.returncode == 0, plan.stderr
    config = folder / "toxiproxy.json"
    config.write_text(plan.stdout)
    with served(toxiproxy, address, api, "-config", str(config)) as url:
        yield url


def proxies_of(url):
    """As its operators see them; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/proxies", timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return None
