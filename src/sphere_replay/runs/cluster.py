"""The runs of a sweep on the nodes of a Ray cluster, in the folders they have on one machine.

Folders, data and plug-ins lie on a disk that all nodes see at the same paths. What travels is text:
a run's configuration as JSON, and how it ended. A node that dies gives its runs back; others resume
them from their checkpoints.
"""

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sphere_replay.codebase import this_code
from sphere_replay.config import RunConfig
from sphere_replay.errors import UsageError, UserError
from sphere_replay.extras import require
from sphere_replay.plugging import Plugin, load_again, loaded
from sphere_replay.runs.domains import saved_config
from sphere_replay.runs.folder import differences
from sphere_replay.runs.launch import Outcome, Surroundings, attempt, run_folder

LOST_NODES = 20
"""So often a run is tried again after its node or process was lost; then it has failed."""
PATIENCE = 120.0
"""Seconds that a lost node may still hold the folder of its run; disks of networks take theirs."""
SHOWN_WITHIN = 60.0
"""Seconds after which a disk of the network shows what another node has written."""
GRACE = 60.0
"""Seconds in which runs save themselves when the sweep is interrupted."""


def on_cluster(configs: list[RunConfig], around: Surroundings, address: str) -> Iterator[Outcome]:
    """Outcomes as they come; an empty address means the cluster that this machine belongs to.

    Without one, and without `$RAY_ADDRESS`, a cluster of this machine alone is begun, and ended
    with the sweep.
    """
    around.out.mkdir(parents=True, exist_ok=True)
    with _connected(address) as ray:
        task = ray.remote(run_from_text)
        waiting = {}
        for config in configs:
            needs = _needs(config)
            options = task.options(name=config.run_name, max_retries=LOST_NODES, **needs)
            waiting[options.remote(_text(config, around))] = config
        _warn_of_missing(ray, [_needs(config) for config in configs])
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting))
                yield _outcome(ray, ready, waiting.pop(ready), around)
        finally:
            for reference in waiting:
                ray.cancel(reference)  # as Ctrl-C does: a run saves itself first
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)


def run_from_text(text: str) -> str:
    """What a node does: run what the text says, and say in a text how it ended."""
    sent = json.loads(text)
    out, data = Path(sent["out"]), sent["data"]
    try:
        if not out.is_dir():
            raise UsageError(f"there is no {out} here: --out must be on a disk of all nodes")
        load_again(Plugin(**plugin) for plugin in sent["plugins"])
        config = saved_config(sent["config"])
        other = differences(sent["config"], config.to_dict())
        if other or sent["code"] != this_code().digest:
            raise UsageError(
                f"the node has other code of sphere-replay, {this_code()}: install the same "
                "everywhere" + "".join(f"\n  {line}" for line in other)
            )
    except UserError as error:
        return json.dumps({"status": "failed", "reason": f"{_here()}: {error}"})
    around = Surroundings(out, data and Path(data), sent["record"], tuple(sent["track"]))
    outcome = attempt(config, around, patience=PATIENCE)
    return json.dumps({"status": outcome.status, "reason": outcome.reason, "node": _here()})


def _text(config: RunConfig, around: Surroundings) -> str:
    data = around.data or os.environ.get("SPHERE_DATA")
    content = {
        "config": config.to_dict(),
        "code": this_code().digest,
        "plugins": [asdict(plugin) for plugin in loaded()],
        "out": str(around.out.resolve()),
        "data": data and str(Path(data).resolve()),
        "record": around.record,
        "track": around.track,
    }
    return json.dumps(content)


def _outcome(ray: Any, ready: Any, config: RunConfig, around: Surroundings) -> Outcome:
    try:
        told = json.loads(ray.get(ready))
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Outcome(config, "failed", f"Ray: {lines[-1]}")
    if told["status"] == "finished" and not _seen(config, around.out):
        reason = f"{told['node']} has written to another {around.out}: it must be on a shared disk"
        return Outcome(config, "failed", reason)
    return Outcome(config, told["status"], told["reason"])


def _seen(config: RunConfig, out: Path) -> bool:
    """Whether results are here; a disk of the network may take its time to show them."""
    until, folder = time.monotonic() + SHOWN_WITHIN, run_folder(config, out)
    while not folder.finished:
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
        for place in (out, folder.path):  # what is remembered of a folder is looked up anew
            with suppress(OSError):
                os.listdir(place)
    return True


def _needs(config: RunConfig) -> dict[str, float]:
    """What a run takes of a node."""
    cuda = getattr(config, "device", "cpu") == "cuda"
    return {"num_cpus": getattr(config, "threads", 1), "num_gpus": int(cuda)}


def _warn_of_missing(ray: Any, needs: list[dict[str, float]]) -> None:
    """Ray waits for a node that is large enough, and says nothing; it may be on its way."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for need in needs:
        if not any(
            node.get("CPU", 0) >= need["num_cpus"] and node.get("GPU", 0) >= need["num_gpus"]
            for node in nodes
        ):
            warnings.warn(
                f"no node of the cluster has {need['num_cpus']} CPUs and {need['num_gpus']} GPUs, "
                "which a run needs: it waits until one comes",
                stacklevel=2,
            )
            return


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told; read at its import
    ray = require("ray", "ray")
    if ray.is_initialized():  # by the program that sweeps
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    try:
        try:
            _knock(address)
            ray.init(address=address or None, **quiet)
        except (OSError, ValueError) as error:
            named = repr(address) if address else f"$RAY_ADDRESS, {os.environ.get('RAY_ADDRESS')!r}"
            raise UsageError(
                f"no Ray cluster at {named} ({error}): give HOST:PORT of its head; one is begun by "
                "ray start --head --include-dashboard=false --disable-usage-stats"
            ) from error
        yield ray
    finally:
        ray.shutdown()  # of half a cluster, too


def _knock(address: str) -> None:
    """Ray would wait for a head that is not there, and say nothing.

    Without an address it takes that of the environment; either may be a word that Ray knows.
    """
    named = (address or os.environ.get("RAY_ADDRESS", "")).removeprefix("ray://")
    if ":" in named:
        host, _, port = named.rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()
    elif address not in ("", "auto", "local"):
        raise ValueError("it has no port")


def _here() -> str:
    return f"node {os.uname().nodename}"
