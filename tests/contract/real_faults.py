"""Runs inside of a sandbox: starts a real datacenter and checks every fault on it. Prints one JSON line a case.

python real_faults.py CONSUL ROOT
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path

import anyio
from fault_cases import CASES, nature

from hashidrill import registry
from hashidrill.abc import Target
from hashidrill.datacenter.local import LocalDatacenter
from hashidrill.model import Consul, DatacenterSpec, Disk, Size
from hashidrill.testing.faults import check_fault

OPERATIONS = frozenset({"fsync", "write", "read"})


async def main() -> None:
    spec = DatacenterSpec(
        consul=Consul(version=sys.argv[3], config={"performance": {"raft_multiplier": 1}}),
        disk=Disk(size=Size("256MB")),
    )
    datacenter = LocalDatacenter(spec, Path(sys.argv[2]), Path(sys.argv[1]), OPERATIONS)
    await datacenter.start()
    await datacenter.wait_ready()
    for kind, params in CASES:
        began = time.monotonic()
        line = {"kind": kind, "params": params}
        try:
            report = await _check(datacenter, kind, params)
            line |= {"asked": report.present.asked, "measured": report.present.measured, "gone": report.gone.measured}
            line["figures"] = dict(report.present.figures)
        except Exception as error:
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps({**line, "seconds": round(time.monotonic() - began, 2)}), flush=True)


async def _check(datacenter, kind, params):
    cls = registry.fault(kind)
    fault = cls(cls.Params.model_validate(params), datacenter)
    [target] = await datacenter.select("host:consul-2")

    def again() -> Target:
        return target

    return await check_fault(fault, again, **nature(kind))


anyio.run(main)
