"""The local datacenter: sandbox, hosts, binaries, `hashidrill up`, and how a run is launched and healed there."""
