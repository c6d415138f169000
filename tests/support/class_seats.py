"""Seats of a class over real SSH: OpenSSH's client, and a server that obeys our authorized_keys as sshd does."""

import asyncio
import contextlib
import os
import pty
import select
import signal
import subprocess
import threading
import time

import asyncssh

WITHIN_S = 60.0


async def _typed(process, terminal):
    with contextlib.suppress(OSError, asyncssh.Error):
        while said := await process.stdin.read(65536):
            os.write(terminal, said)


class SeatServer:
    """asyncssh's server on the loopback. It obeys `command=` and `restrict` of authorized_keys, as sshd does."""

    def __init__(self, folder, authorized):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._authorized, self.commands, self._serving = str(authorized), [], []
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        self._listener = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        self.port = self._listener.get_port()
        public = self._key.export_public_key().decode().strip()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}\n")

    async def _listen(self):
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self._key],
            process_factory=self._serve,
            encoding=None,
            authorized_client_keys=self._authorized,
        )

    async def _serve(self, process):
        """Runs the forced command, and never another, on a terminal of its own; a lost connection hangs that up."""
        self.commands.append(process.command)
        self._serving.append(asyncio.current_task())
        ours, theirs = os.openpty()
        words = ["setsid", "--ctty", "--wait", "sh", "-c", process.command]
        child = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        ended = asyncio.Event()

        def shown():
            try:
                process.stdout.write(os.read(ours, 65536))
            except OSError:  # the last program on it has ended
                self._loop.remove_reader(ours)
                ended.set()

        self._loop.add_reader(ours, shown)
        tasks = [asyncio.create_task(each) for each in (_typed(process, ours), ended.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._loop.remove_reader(ours)
        os.close(ours)
        for task in tasks:
            task.cancel()
        process.exit(await asyncio.to_thread(child.wait))

    def close(self):
        async def end():
            self._listener.close()
            await self._listener.wait_closed()
            await asyncio.wait_for(asyncio.gather(*self._serving, return_exceptions=True), WITHIN_S)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def ssh(folder, port, *words, key="ada"):
    options = ["IdentitiesOnly=yes", f"UserKnownHostsFile={folder / 'known_hosts'}", "BatchMode=yes"]
    command = ["ssh", "-F", "none", "-tt", "-p", str(port), "-i", str(folder / key)]
    return [*command, *(word for option in options for word in ("-o", option)), "127.0.0.1", *words]


class Person:
    """At a terminal, in front of a command. Closing the terminal is how their laptop loses the network."""

    def __init__(self, command):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        self.seen = b""

    def sees(self, text, within_s=WITHIN_S):
        """Whether the text comes."""
        end = time.monotonic() + within_s
        while text not in self.seen and time.monotonic() < end:
            if select.select([self.terminal], [], [], 1.0)[0]:
                try:
                    said = os.read(self.terminal, 65536)
                except OSError:
                    break
                self.seen += said
        return text in self.seen

    def types(self, line):
        self.seen = b""
        os.write(self.terminal, line.encode() + b"\r")

    def leaves(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)
