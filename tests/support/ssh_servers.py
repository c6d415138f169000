"""A real SSH server, asyncssh's own, in front of boxes: each command runs as root of its box."""

import asyncio
import contextlib
import sys
import threading

import asyncssh


async def _fed(process, child):
    """What the client says; its end, and the connection's, end the standard input of the command."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while said := await process.stdin.read(65536):
            child.stdin.write(said)
            await child.stdin.drain()
    child.stdin.close()


async def _told(reader, writer):
    while said := await reader.read(65536):
        with contextlib.suppress(OSError, asyncssh.Error):  # nobody listens any more: the command still runs to its end
            writer.write(said)


class Here:
    """The machine that all agents run on, in place of a box."""

    inside = ()


class SshServers:
    """One server for each box, on a port of this machine's loopback, in a thread. `ports` is by name of the box."""

    def __init__(self, folder, boxes):
        self._boxes, self._connections = boxes, []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        host_key, self.key = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
        self.key.write_private_key(str(folder / "id"))
        (folder / "id").chmod(0o600)
        self.key.write_public_key(str(folder / "authorized"))
        self._listeners = {name: self._wait(self._listen(box, host_key, folder)) for name, box in boxes.items()}
        self.ports = {name: listener.get_port() for name, listener in self._listeners.items()}
        public = host_key.export_public_key().decode().strip()
        known = [f"[127.0.0.1]:{port} {public}\n" for port in self.ports.values()]
        (folder / "known_hosts").write_text("".join(known))
        self.prefix = []
        """Put before each command: a sudo that refuses, for example."""

    def settings(self, notes, **more):
        """`carriers.ssh` of an attach file in the folder of the keys."""
        return {
            "user": "ops",
            "key_file": "id",
            "known_hosts": "known_hosts",
            "agent": False,
            "python": sys.executable,
            "addresses": {name: f"127.0.0.1:{port}" for name, port in self.ports.items()},
            "notes": str(notes),
            **more,
        }

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self, box, host_key, folder):
        servers = self

        class Server(asyncssh.SSHServer):
            def connection_made(self, connection):
                servers._connections.append(connection)

            def connection_requested(self, *_):
                """Each is a jump host to the others."""
                return True

        async def serve(process):
            command = [*box.inside, *servers.prefix, "sh", "-c", process.command]
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
            feeding = asyncio.create_task(_fed(process, child))
            try:
                await asyncio.gather(_told(child.stdout, process.stdout), _told(child.stderr, process.stderr))
                process.exit(await child.wait())
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Server,
            server_host_keys=[host_key],
            process_factory=serve,
            encoding=None,
            authorized_client_keys=str(folder / "authorized"),
        )

    def cut(self):
        """Every connection is gone at once, as a network is that nobody can use any more."""

        async def abort():
            for connection in self._connections:
                connection.abort()
            self._connections.clear()

        self._wait(abort())

    def close(self):
        async def end():
            for listener in self._listeners.values():
                listener.close()
            for connection in self._connections:
                connection.abort()
            for listener in self._listeners.values():
                await listener.wait_closed()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, late = await asyncio.wait(others, timeout=20)
                for task in late:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

        self._wait(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
