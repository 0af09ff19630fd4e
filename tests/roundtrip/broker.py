"""A name server, a broker and RocketMQ's clients as processes on loopback, in a folder of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rmq_store.utils.host import Host, monotonic_ms
from spark_jobs.jars import fetch, locked_jars, retrieve_by_ivy
from spark_jobs.java import find_java

HERE = Path(__file__).parent
LOCK_FILE = HERE / "jars.lock"
BROKER = "broker-a"
LEVELS = "1s 1s 2s 2s 3s 3s"
"""Short delays, so that a run takes minutes: a first retry waits at level 3."""
_START_MS = 60_000


class RocketMQ:
    """One version of RocketMQ. ``folder`` holds its store, logs and configuration."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.folder = folder
        self.store = folder / "store"
        self.ledger = folder / "ledger.tsv"
        self._jars = [jar for jar in locked_jars(LOCK_FILE) if jar.group == f"rocketmq-{version}"]
        self._name_server, self._port = _free_port(), _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._broker: subprocess.Popen[bytes] | None = None

    def set_up(self) -> None:
        """Fetches the jars that are missing, and compiles the clients."""
        fetch(
            self._jars,
            retrieve_by_ivy,
            lambda line: None if line.endswith("already there") else print(line, flush=True),
        )
        classes = self.folder / "classes"
        classes.mkdir(parents=True)
        sources = [HERE / "RoundTrip.java", *sorted((HERE / f"java-{self.version}").glob("*.java"))]
        subprocess.run(
            [
                find_java() / "bin" / "javac",
                "-nowarn",
                "-XDsuppressNotes",
                "-d",
                classes,
                "-cp",
                self._class_path,
                *sources,
            ],
            check=True,
        )
        services = classes / "META-INF" / "service"
        services.mkdir(parents=True)
        (services / "org.apache.rocketmq.store.ha.HAService").write_text("NoHaService")
        conf = self.folder / "conf"
        conf.mkdir()
        for name in ("namesrv", "broker"):  # without them 4.9 does not start
            (conf / f"logback_{name}.xml").write_text("<configuration/>")
        process = self._start("namesrv.NamesrvStartup", self._properties("namesrv", self._name_server))
        self._wait_for_port(self._name_server, process)

    def start(self, *topics: str, **settings: object) -> None:
        """Starts the broker on its store, waits until its name server knows it, and creates the topics."""
        values: Mapping[str, object] = {
            "brokerClusterName": "roundtrip",
            "brokerName": BROKER,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.name_server,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": 1 << 17,
            "maxMessageSize": 1 << 16,
            "mappedFileSizeConsumeQueue": 6000,
            "messageDelayLevel": LEVELS,
            "flushConsumerOffsetInterval": 1000,
            "flushDelayOffsetInterval": 1000,
            "cleanResourceInterval": 1000,
            "timerWheelEnable": False,
            # Only a request to delete old log files is to delete any, at any hour of the day.
            "deleteWhen": "25",
            "fileReservedTime": 72,
            **settings,
        }
        self._broker = self._start("broker.BrokerStartup", self._properties("broker", self._port, values))
        self._wait_for_port(self._port, self._broker)
        self.run("topics", self.address, *topics)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the broker: cleanly, or by SIGKILL."""
        assert self._broker is not None
        self._broker.send_signal(how)
        self._broker.wait(timeout=120)

    def client(self, *arguments: object) -> subprocess.Popen[bytes]:
        """A process of RoundTrip.java; ``ledger`` takes what it writes down."""
        command, *rest = arguments
        ledger = [self.ledger] if command in ("produce", "consume") else []
        return self._java("client", "RoundTrip", str(command), self.name_server, *ledger, *rest)

    def run(self, *arguments: object) -> None:
        """``client``, to its end. Raises CalledProcessError when it fails."""
        finish(self.client(*arguments))

    def java(self, main: str, *arguments: object) -> None:
        """Another program, to its end. Raises CalledProcessError when it fails."""
        finish(self._java("client", main, *arguments))

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._name_server}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.kill()
                process.wait()

    @property
    def _class_path(self) -> str:
        return os.pathsep.join(map(str, [self.folder / "classes", *(jar.path for jar in self._jars)]))

    def _properties(self, name: str, port: int, values: Mapping[str, object] | None = None) -> Path:
        file = self.folder / f"{name}.conf"
        lines = {"bindAddress": "127.0.0.1", "listenPort": port, **(values or {})}
        file.write_text("".join(f"{key}={_text(value)}\n" for key, value in lines.items()))
        return file

    def _start(self, main: str, config: Path) -> subprocess.Popen[bytes]:
        return self._java(config.stem, f"org.apache.rocketmq.{main}", "-c", config)

    def _java(self, name: str, main: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    find_java() / "bin" / "java",
                    *("-Xms128m", "-Xmx512m", f"-Duser.home={self.folder}", f"-Drocketmq.home.dir={self.folder}"),
                    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dtls.server.mode=disabled"),
                    *("-cp", self._class_path, main),
                    *map(str, arguments),
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def _wait_for_port(self, port: int, process: subprocess.Popen[bytes]) -> None:
        until = monotonic_ms() + _START_MS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if process.poll() is not None or monotonic_ms() > until:
                raise RuntimeError(
                    f"RocketMQ {self.version} does not answer on port {port}; see the logs in {self.folder}"
                )
            Host().sleep(0.1)


@contextmanager
def rocketmq(version: str, folder: Path) -> Iterator[RocketMQ]:
    """A set-up RocketMQ; every process that it started is ended at the end."""
    here = RocketMQ(version, folder)
    try:
        here.set_up()
        yield here
    finally:
        here.close()


def finish(process: subprocess.Popen[bytes]) -> None:
    """Waits for the end of a client. Raises CalledProcessError when it failed."""
    code = process.wait(timeout=300)
    if code != 0:
        raise subprocess.CalledProcessError(code, [str(part) for part in process.args[-8:]])  # type: ignore[index]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _free_port() -> int:
    """A port that is free, and so is the second one below it, which a broker takes too."""
    while True:
        with socket.socket() as probe, socket.socket() as below:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if below.connect_ex(("127.0.0.1", port - 2)) != 0:
                return port
