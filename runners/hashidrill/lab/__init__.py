"""The local datacenter: sandbox, hosts, binaries, `hashidrill lab up`, and how a run is launched and healed there."""
