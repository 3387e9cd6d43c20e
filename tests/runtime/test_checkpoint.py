"""Checkpoints come back on any grid, bit by bit, or are recognised as torn."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.runtime import checkpoint
from mxpeak.runtime.checkpoint import HEAD, PAGE, SLOTS, Part, Writer, checkpoints, digest, load, trouble, write_part

M, N, NB = 37, 38, 5
WHOLE = np.random.default_rng(7).standard_normal((M, N))


def places(rows: BlockCyclic, columns: BlockCyclic) -> Any:
    indices = [[one.to_global(i) for i in range(one.local_size)] for one in (rows, columns)]
    return np.ix_(*indices)


def keep(
    folder: Path, number: int = 1, P: int = 2, Q: int = 3, run: str = "this", whole: Any = WHOLE, only: Any = None
) -> None:
    """All parts of a checkpoint, or one of them."""
    for p in range(P):
        for q in range(Q):
            if only not in (None, (p, q)):
                continue
            part = Part(run, number, 4, M, N, NB, P, Q, p, q, whole.dtype.name, 1.5, 0.0, {"blocks": [float(p)]})
            write_part(folder / SLOTS[number % 2], part, whole[places(part.rows, part.columns)])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2), (5, 1), (9, 9)], ids=str)
def test_a_matrix_comes_back_on_any_grid(tmp_path: Path, shape: tuple[int, int], dtype: str) -> None:
    whole = WHOLE.astype(dtype)
    keep(tmp_path, whole=whole)
    (found,), wrong = checkpoints(tmp_path, "this")
    assert len(wrong) == 1  # the slot that is empty
    assert found.about.steps == 4
    assert [trouble(*one) for one in found.parts] == [None] * 6
    for p in range(shape[0]):
        for q in range(shape[1]):
            rows, columns = BlockCyclic(M, NB, p, shape[0]), BlockCyclic(N, NB, q, shape[1])
            padded = np.full((rows.local_size, columns.local_size + 3), np.nan, dtype)
            local = padded[:, : columns.local_size]
            load(found, rows, columns, local)
            assert np.array_equal(local, whole[places(rows, columns)])
            assert np.isnan(padded[:, columns.local_size :]).all()


def flip(path: Path) -> None:
    """One bit of its numbers."""
    content = bytearray(path.read_bytes())
    content[HEAD + 77] ^= 4
    path.write_bytes(content)


TEARS: dict[str, Callable[[Path], object]] = {
    "a bit is flipped": flip,
    "its end is missing": lambda path: os.truncate(path, path.stat().st_size - 1),
    "it is empty": lambda path: os.truncate(path, 0),
    "it is gone": Path.unlink,
    "it is something else": lambda path: path.write_text("[1]\n"),
    "its first line is cut": lambda path: os.truncate(path, 100),
    "it is of another run": lambda path: keep(path.parent.parent, 2, run="other"),
    "it is of another checkpoint": lambda path: keep(path.parent.parent, 4, only=(1, 1)),
    "it is of another grid": lambda path: keep(path.parent.parent, 4, P=2, Q=2, only=(1, 1)),
}


def test_what_was_kept_on_a_larger_grid_is_in_nobodys_way(tmp_path: Path) -> None:
    for number, shape in ((1, (2, 3)), (2, (2, 3)), (3, (1, 2)), (4, (1, 2))):
        keep(tmp_path, number, *shape)
        found, wrong = checkpoints(tmp_path, "this")
        assert (found[0].about.number, len(found[0].parts), len(wrong)) == (number, shape[0] * shape[1], number < 2)


@pytest.mark.parametrize("name", TEARS)
def test_a_torn_checkpoint_is_recognised_and_the_one_before_it_is_whole(tmp_path: Path, name: str) -> None:
    keep(tmp_path, 1)
    keep(tmp_path, 2)
    TEARS[name](tmp_path / SLOTS[0] / "1-1")
    found, wrong = checkpoints(tmp_path, "this")
    whole = [one for one in found if not any(trouble(*part) for part in one.parts)]
    assert [one.about.number for one in whole] == [1]
    assert wrong or len(found) == 2


def test_the_latest_checkpoint_comes_first(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        keep(tmp_path, number)
    found, wrong = checkpoints(tmp_path, "this")
    assert [one.about.number for one in found] == [3, 2]
    assert wrong == []


def test_a_full_disk_leaves_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("this", 1, 4, M, N, NB, 1, 1, 0, 0, "float64", 1.0, 0.0, {})
    writer = Writer(tmp_path, WHOLE)
    writer.write(part, lambda copy: np.copyto(copy, WHOLE))
    writer.wait()
    before = (tmp_path / SLOTS[1] / "0-0").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    writer.write(part, lambda copy: np.copyto(copy, 0.0))
    writer.wait()
    assert writer.error is not None
    assert writer.error.errno == 28
    assert not writer.busy
    assert (tmp_path / SLOTS[1] / "0-0").read_bytes() == before
    assert [path.name for path in (tmp_path / SLOTS[1]).iterdir()] == ["0-0"]


def takes_direct_writes(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("refuses", ["nobody", "the file system", "the disk"])
def test_what_is_written_past_the_cache_is_what_goes_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """Several whole pages and a rest; where the file system or the disk refuses, all goes through the cache."""
    if not takes_direct_writes(tmp_path):
        pytest.skip("the temporary folder's file system takes no direct writes")
    n = 3 * PAGE // 8 + 5
    part = Part("this", 1, 4, 1, n, n, 1, 1, 0, 0, "float64", 1.0, 0.0, {})
    write, control, direct = os.write, fcntl.fcntl, []

    def is_direct(file: int) -> bool:
        return bool(control(file, fcntl.F_GETFL) & os.O_DIRECT)

    def written(file: int, data: memoryview) -> int:
        if refuses == "the disk" and is_direct(file):
            raise OSError(errno.EINVAL, "Invalid argument")
        direct.append(is_direct(file))
        return write(file, data[: len(data) // 2 or 1]) if len(data) < PAGE else write(file, data)

    def controlled(file: int, what: int, flags: int = 0) -> int:
        if refuses == "the file system" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return control(file, what, flags)

    monkeypatch.setattr(checkpoint.os, "write", written)
    monkeypatch.setattr(checkpoint.fcntl, "fcntl", controlled)
    writer, numbers = Writer(tmp_path, np.empty((1, n))), np.random.default_rng(1).standard_normal((1, n))
    writer.write(part, lambda copy: np.copyto(copy, numbers))
    writer.wait()
    assert writer.error is None
    assert any(direct) == (refuses == "nobody")
    assert not direct[-1]
    (found,), _ = checkpoints(tmp_path, "this")
    assert trouble(*found.parts[0]) is None
    local = np.empty((1, n))
    load(found, part.rows, part.columns, local)
    assert np.array_equal(local, numbers)


def test_any_single_bit_changes_the_digest() -> None:
    numbers = np.arange(3000.0)
    known = digest(numbers)
    bits = numbers.view(np.uint8)
    for at in (0, 4095, 4096, 23999):
        for bit in (1, 128):
            bits[at] ^= bit
            assert digest(numbers) != known
            bits[at] ^= bit
    assert digest(numbers) == known
