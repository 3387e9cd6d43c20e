"""Read the counters of network adapters: InfiniBand, RoCE and Slingshot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

#: Counters of the adapters' ports, by the path of their file relative to the root; None without permission to read it.
Counters = Mapping[str, int | None]

#: Bytes per unit of port_xmit_data and port_rcv_data.
IB_WORD = 4
#: Words in the names of counters of errors and of waiting time.
ERROR = re.compile(r"err|discard|uncorrect|link_down|retrans|timeout|out_of_sequence")
WAIT = re.compile(r"wait|pause|stall|congest")
SENT = re.compile(r"port_xmit_data$|tx_ok_octets$")
RECEIVED = re.compile(r"port_rcv_data$|rx_ok_octets$")


def adapter_counters(root: str | Path = "/") -> Counters:
    """Return all counters of the adapters of this host; counters that the driver does not implement are omitted."""
    system = Path(root) / "sys/class"
    files = [*system.glob("infiniband/*/ports/*/*counters/*"), *system.glob("cxi/*/device/telemetry/*")]
    counters: dict[str, int | None] = {}
    for file in sorted(files):
        name = str(file.relative_to(system))
        try:
            text = file.read_text()
        except PermissionError:
            counters[name] = None
        except (OSError, ValueError):
            continue
        else:
            if number := re.match(r"\d+", text):  # Slingshot writes value@time
                counters[name] = int(number[0])
    return counters


def adapter_changes(before: Counters, after: Counters) -> list[dict[str, object]]:
    """Return by adapter port the bytes sent and received, and the error and wait counters that have increased.

    `unreadable` is the number of counters that the user may not read.
    """
    ports: dict[str, dict[str, int]] = {}
    unreadable = Counter(_port(path) for path, value in after.items() if value is None)
    for path, value in after.items():
        changes, first = ports.setdefault(_port(path), {}), before.get(path)
        if value is not None and first is not None:
            changes[path.rsplit("/", 1)[1]] = value - first
    return [
        {
            "port": port,
            "sent_bytes": _bytes(port, changes, SENT),
            "received_bytes": _bytes(port, changes, RECEIVED),
            "errors": _increased(changes, ERROR),
            "waits": _increased(changes, WAIT),
            "unreadable": unreadable[port],
        }
        for port, changes in ports.items()
    ]


def _port(path: str) -> str:
    """Return the name of the port of a counter's file, such as mlx5_0/1 or cxi0."""
    parts = path.split("/")
    return f"{parts[1]}/{parts[3]}" if parts[0] == "infiniband" else parts[1]


def _bytes(port: str, changes: Mapping[str, int], name: re.Pattern[str]) -> int | None:
    """Return the bytes of a port's data counter, or None if the port has no such counter."""
    words = [change for counter, change in changes.items() if name.search(counter)]
    return (IB_WORD if "/" in port else 1) * words[0] if words else None


def _increased(changes: Mapping[str, int], name: re.Pattern[str]) -> dict[str, int]:
    return {counter: change for counter, change in sorted(changes.items()) if change > 0 and name.search(counter)}
