"""The measurements of canaries (hashidrill.lab.local.inside.canary) as capabilities of a host."""

from collections.abc import Sequence
from typing import Any

from hashidrill.core.protocols.capabilities import Exchange, ExchangeRequest, Timing

ANSWERS_WITHIN_S = 30.0
CPU, NETWORK = "cpu", "network"


class CanaryOfHost:
    """CpuCanary and NetworkCanary (hashidrill.core.protocols.capabilities), by requests to a canary."""

    async def ask_canary(
        self, of: str, op: str, *, within_s: float = ANSWERS_WITHIN_S, **request: Any
    ) -> dict[str, Any]:
        """`of` is CPU or NETWORK, because a host may have a canary for each. Raises FaultError."""
        raise NotImplementedError

    async def canary_burn(self, threads: int, windows: int, window_s: float) -> Sequence[float]:
        within_s = ANSWERS_WITHIN_S + 10 * windows * window_s
        said = await self.ask_canary(CPU, "burn", threads=threads, windows=windows, window=window_s, within_s=within_s)
        return [float(cores) for cores in said["cores"]]

    async def connect(self, address: str, port: int, timeout_s: float) -> Timing:
        said = await self.ask_canary(NETWORK, "connect", address=address, port=port, timeout=timeout_s)
        return Timing(said["seconds"], said["errno"])

    async def canary_listen(self, port: int) -> None:
        await self.ask_canary(NETWORK, "listen", port=port)

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]:
        rounds = -(-request.connections // request.at_once)
        said = await self.ask_canary(
            NETWORK,
            "exchange",
            address=address,
            port=port,
            upload=request.upload_bytes,
            download=request.download_bytes,
            timeout=request.timeout_s,
            connections=request.connections,
            until_closed=request.until_closed,
            at_once=request.at_once,
            within_s=ANSWERS_WITHIN_S + rounds * request.timeout_s,
        )
        return [Exchange(**one) for one in said["exchanges"]]

    async def echo_loss(self, address: str, datagrams: int, timeout_s: float) -> float:
        said = await self.ask_canary(NETWORK, "echo", address=address, count=datagrams, timeout=timeout_s)
        return float(said["lost"])
