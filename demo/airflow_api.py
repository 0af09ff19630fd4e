"""The part of Airflow's REST API that the demo needs: trigger a run, wait for it, read its answers, clear it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from scripts.airflow_home import USER, AirflowNotReady, direct_opener

Json = dict[str, Any]
_ANSWER_S = 300.0
"""Time-out of one request: long enough for a slow machine, and it ends the wait for an api-server that hangs."""


class RunFailed(Exception):
    """A DAG run failed; the message has the errors of its logs."""


class Home(Protocol):
    """An AirflowHome, or another Airflow with its files on this machine."""

    @property
    def url(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def password(self) -> str: ...


class Processes(Protocol):
    """Its processes."""

    def wait_for(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait as long as they make progress. Raises AirflowNotReady."""


class AirflowApi:
    """A client of a local Airflow. ``heartbeat`` is called during a wait, with what is waited for."""

    def __init__(self, home: Home, airflow: Processes, heartbeat: Callable[[str], None]) -> None:
        self._home = home
        self._airflow = airflow
        self._heartbeat = heartbeat
        self._opener = direct_opener()
        login = {"username": USER, "password": home.password}
        self._token = self.request("POST", "/auth/token", login)["access_token"]

    def wait_for_dags(self, dag_ids: set[str]) -> None:
        """Wait until Airflow has read the DAGs. Raises AirflowNotReady with their import errors."""

        def read() -> bool:
            self._heartbeat("Airflow reads the DAGs")
            errors = self.request("GET", "/api/v2/importErrors")["import_errors"]
            if errors:
                raise AirflowNotReady("\n".join(f"{error['filename']}: {error['stack_trace']}" for error in errors))
            return all(map(self._has_dag, dag_ids))

        self._airflow.wait_for(read, f"Airflow has not read all of {', '.join(sorted(dag_ids))}")

    def _has_dag(self, dag_id: str) -> bool:
        """A page of the list has 100 DAGs at most, so it is asked for those with this name."""
        dags = self.request("GET", f"/api/v2/dags?limit=100&dag_id_pattern={quote(dag_id)}")["dags"]
        return dag_id in {dag["dag_id"] for dag in dags}

    def run(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> Json:
        """Trigger a run and wait until it has succeeded. Returns the answers of its tasks. Raises RunFailed."""
        self.trigger(dag_id, run_id, conf)
        return self.finish(dag_id, run_id)

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> None:
        """Trigger a run, without waiting for it."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)

    def clear(self, dag_id: str, run_id: str) -> Json:
        """Clear all tasks of a finished run, as the button in the UI does, and wait until it has succeeded again."""
        self.request("POST", f"{_run_path(dag_id, run_id)}/clear", {"dry_run": False, "only_failed": False})
        return self.finish(dag_id, run_id)

    def finish(self, dag_id: str, run_id: str) -> Json:
        """Wait until a run has succeeded. Returns the answers of its tasks. Raises RunFailed."""

        def succeeded() -> bool:
            state = self.request("GET", _run_path(dag_id, run_id))["state"]
            if state == "failed":
                raise RunFailed(f"run {run_id} of {dag_id} failed.\n{self._last_error(dag_id, run_id)}")
            self._heartbeat(f"{dag_id} is {state}")
            return bool(state == "success")

        self._airflow.wait_for(succeeded, f"run {run_id} of {dag_id} has not ended")
        return dict(self._answers(dag_id, run_id))

    def _answers(self, dag_id: str, run_id: str) -> Iterator[tuple[str, Any]]:
        """The return value of each task by its id; of a mapped task a list."""
        tasks = self.request("GET", f"{_run_path(dag_id, run_id)}/taskInstances?limit=100")["task_instances"]
        mapped: dict[str, list[Any]] = {}
        for task in tasks:
            if task["state"] != "success":
                continue
            index = task["map_index"]
            path = f"{_run_path(dag_id, run_id)}/taskInstances/{task['task_id']}/xcomEntries/return_value"
            try:
                value = self.request("GET", f"{path}?deserialize=true&stringify=false&map_index={index}")["value"]
            except RunFailed:
                continue  # a task without a return value
            if index < 0:
                yield task["task_id"], value
            else:
                mapped.setdefault(task["task_id"], []).append(value)
        yield from mapped.items()

    def _last_error(self, dag_id: str, run_id: str) -> str:
        """The last errors in the logs of the run's tasks, and the folder of the logs."""
        folder = self._home.folder / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
        files = sorted(folder.rglob("*.log"), key=lambda file: file.stat().st_mtime)
        errors = [error for file in files for error in _errors_in(file)]
        return "\n".join([*dict.fromkeys(errors[-3:]), f"Logs: {folder}"])

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """The answer of Airflow's API. Raises RunFailed when it refuses, AirflowNotReady when it does not answer."""
        headers = {"Content-Type": "application/json"}
        if hasattr(self, "_token"):
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._home.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                content: Json = json.load(answer)
                return content
        except urllib.error.HTTPError as error:
            raise RunFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from error
        except (OSError, ValueError) as error:
            raise AirflowNotReady(f"Airflow does not answer {method} {path}: {error}") from error


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _errors_in(log: Path) -> Iterator[str]:
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        for detail in entry.get("error_detail") or ():
            if not detail.get("is_cause"):
                yield f"{detail.get('exc_type')}: {detail.get('exc_value')}"
