"""Runs a user's command, and samples its exit code, or the number that it prints."""

import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import ClassVar

import anyio
from pydantic import Field, field_validator

from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.declared import OK, DeclaredProbe, Look, ProbeContext, ProbeParams, Source
from hashidrill.core.units import shown
from hashidrill.core.util.redaction import is_secret_name, without_secrets

MOST_BYTES = 65_536
_ENDS_WITHIN_S = 5.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CommandParams(ProbeParams):
    """The parameters of a command probe."""

    command: list[str] = Field(min_length=1, max_length=100, description="Program and arguments; no shell")
    exit_code: int = Field(default=0, ge=0, le=255, description="The exit code of a good look")
    number: bool = Field(default=False, description="Whether the command prints one number, which becomes `value`")
    environment: dict[str, str | Source] = Field(
        default={}, max_length=50, description="Further variables; write a secret as `{env: NAME}` or `{file: PATH}`"
    )

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, value: dict[str, str | Source]) -> dict[str, str | Source]:
        for name, written in value.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{shown(name)} is not the name of a variable")
            if isinstance(written, str) and is_secret_name(name):
                raise ValueError(f"{name} is a secret: write `{{env: NAME}}` or `{{file: PATH}}` instead of its value")
        return value

    @field_validator("command")
    @classmethod
    def _no_nul(cls, value: list[str]) -> list[str]:
        if not value[0] or any("\0" in part for part in value):
            raise ValueError("a command begins with a program, and has no NUL characters")
        return value

    def lacking(self) -> str:
        return "" if shutil.which(self.command[0]) else f"there is no program {shown(self.command[0])} on this machine"


class CommandProbe(DeclaredProbe):
    """Runs a command: `ok` is 1 if it ends with `exit_code`.

    Signals: `ok`, `exit_code`, and with `number` the `value` that it prints: one number, and nothing else. All are
    unknown for a command that does not start, is killed, or takes longer than `timeout`; its whole process group is
    killed. The command gets the runner's environment without secrets, and runs on the runner's machine.
    """

    kind = "command"
    Params: ClassVar = CommandParams
    signals: ClassVar = {OK: None, "exit_code": None, "value": None}
    silence_is_down = False

    def __init__(self, name: str, params: CommandParams, context: ProbeContext, **times: float) -> None:
        super().__init__(name, params, context, **times)
        self._environment = {**without_secrets(os.environ), **context.filled(params.environment)}

    async def look(self) -> Look:
        try:
            process = await anyio.open_process(
                self.params.command,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SickError(f"{self.params.command[0]} cannot be run: {error.strerror or error}") from None
        try:
            output = bytearray()
            assert process.stdout is not None
            async for chunk in process.stdout:
                output += chunk
                if len(output) > MOST_BYTES:
                    raise SickError(f"it printed more than {MOST_BYTES} bytes")
            code = await process.wait()
        finally:
            # a process that the kernel keeps alive is left to the kernel
            with anyio.move_on_after(_ENDS_WITHIN_S, shield=True):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                await process.aclose()
        if code < 0:
            raise SickError(f"it was killed by signal {-code}")
        values = {OK: float(code == self.params.exit_code), "exit_code": float(code)}
        text = f"exit code {code}"
        if self.params.number:
            printed = output.decode(errors="replace").strip()
            try:
                values["value"] = float(printed)
            except ValueError:
                text += f"; it printed {shown(printed)}, not a number"
        return Look(values, text)
