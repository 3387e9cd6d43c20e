"""Test that checkpoints are restored bitwise on any grid, and that damage to a part is detected."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.runtime import checkpoint
from mxpeak.runtime.checkpoint import (
    PAGE,
    SLOTS,
    CheckpointPart,
    DirectWriter,
    Writer,
    check_numbers,
    head_of,
    load,
    read_head,
    read_part,
    write_part,
)

M, N, NB = 37, 38, 5
WHOLE = np.random.default_rng(7).standard_normal((M, N))
#: The number of bytes that a disk writes at once.
SECTOR = 512


def part_of(**values: Any) -> CheckpointPart:
    """Return a part of a small checkpoint with some other values."""
    usual: dict[str, Any] = dict(about={"run": "this"}, generation="g", number=1, steps=4, m=M, n=N, nb=NB, P=1, Q=1)
    usual |= dict(p=0, q=0, dtype="float64", elapsed_s=1.5, unix=2.0, notes={"blocks": [1.0, float("nan")]})
    return CheckpointPart(**{**usual, **values})


def places(rows: BlockCyclic, columns: BlockCyclic) -> Any:
    indices = [[one.to_global(i) for i in range(one.local_size)] for one in (rows, columns)]
    return np.ix_(*indices)


def keep(folder: Path, P: int = 2, Q: int = 3, whole: Any = WHOLE) -> CheckpointPart:
    """Write all parts of a checkpoint, and return the first."""
    for p in range(P):
        for q in range(Q):
            part = part_of(P=P, Q=Q, p=p, q=q, dtype=whole.dtype.name)
            write_part(folder / SLOTS[1], part, whole[places(part.rows, part.columns)])
    return part_of(P=P, Q=Q, dtype=whole.dtype.name)


def kept_bytes(folder: Path, part: CheckpointPart, numbers: Any) -> bytes:
    """Return the file of a part."""
    write_part(folder / SLOTS[1], part, numbers)
    return (folder / SLOTS[1] / part.name).read_bytes()


def defect(content: bytes) -> str:
    """Return the defect that a reader finds in the bytes of a part, or ""."""
    file: Any = io.BytesIO(content)
    try:
        head, part = read_head(file)
        check_numbers(file, head, part)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2), (5, 1), (9, 9)], ids=str)
def test_a_matrix_comes_back_on_any_grid(tmp_path: Path, shape: tuple[int, int], dtype: str) -> None:
    whole = WHOLE.astype(dtype)
    first = keep(tmp_path, whole=whole)
    for p in range(2):
        for q in range(3):
            assert read_part(tmp_path / SLOTS[1], p, q, whole=True)[0].shared == first.shared
    for p in range(shape[0]):
        for q in range(shape[1]):
            rows, columns = BlockCyclic(M, NB, p, shape[0]), BlockCyclic(N, NB, q, shape[1])
            padded = np.full((rows.local_size, columns.local_size + 3), np.nan, dtype)
            local = padded[:, : columns.local_size]
            load(tmp_path / SLOTS[1], first, rows, columns, local.__setitem__)
            assert np.array_equal(local, whole[places(rows, columns)])
            assert np.isnan(padded[:, columns.local_size :]).all()


def test_every_value_of_a_head_is_restored(tmp_path: Path) -> None:
    """The notes include numbers that JSON does not have."""
    part = part_of(notes={"blocks": [0.1, -0.0, float("inf")], "singular": []}, elapsed_s=1 / 3, unix=1.75e9 + 1 / 7)
    write_part(tmp_path / SLOTS[1], part, WHOLE)
    assert read_part(tmp_path / SLOTS[1], 0, 0, whole=True)[0] == part


def test_any_single_flipped_bit_of_a_part_is_recognized(tmp_path: Path) -> None:
    """Every bit of the head, the numbers and the digest: 8 bits times some 5 KB."""
    part = part_of(m=9, n=10, steps=1)
    content = bytearray(kept_bytes(tmp_path, part, WHOLE[:9, :10].copy()))
    assert defect(content) == ""
    accepted = []
    for at in range(len(content)):
        for bit in range(8):
            content[at] ^= 1 << bit
            if not defect(content):
                accepted.append((at, bit))
            content[at] ^= 1 << bit
    assert defect(content) == ""
    assert accepted == []


def test_swapped_sectors_and_torn_writes_are_recognized(tmp_path: Path) -> None:
    """Exchange sectors within a part or between two parts, and mix old and new sectors."""
    rng, draw = random.Random(1), np.random.default_rng(2)
    shape = (64, 128)
    parts = [part_of(m=64, n=128, nb=16, steps=k, elapsed_s=1.0 + k) for k in (1, 2)]
    new, old = (kept_bytes(tmp_path, part, draw.standard_normal(shape)) for part in parts)
    sectors = len(new) // SECTOR
    assert defect(new) == defect(old) == ""
    for case in range(200):
        content, i, j = bytearray(new), *rng.sample(range(sectors), 2)
        here, there = slice(i * SECTOR, (i + 1) * SECTOR), slice(j * SECTOR, (j + 1) * SECTOR)
        if case % 5 == 0:
            content[here], content[there] = new[there], new[here]
        elif case % 5 == 1:
            content[here] = old[here]
        elif case % 5 == 2:
            content[min(i, j) * SECTOR :] = old[min(i, j) * SECTOR :]
        elif case % 5 == 3:
            content[min(i, j) * SECTOR : max(i, j) * SECTOR] = bytes(abs(i - j) * SECTOR)
        else:
            del content[i * SECTOR + rng.randrange(SECTOR) :]
        assert bytes(content) == new or defect(bytes(content)), case  # two sectors of spaces may be exchanged


def test_every_exchange_of_pieces_changes_the_digest() -> None:
    """Also exchange whole pieces of 16 MiB, each of which has its own sum."""
    digests = []
    for order in ((b"a" * 64, b"b" * 64, b"c"), (b"b" * 64, b"a" * 64, b"c"), (b"a" * 64, b"b" * 63, b"bc")):
        digest = checkpoint.Digest(b"head")
        for piece in order:
            digest.add(piece)
        digests.append(digest.text())
    assert len({*digests, checkpoint.Digest(b"head").text(), checkpoint.Digest(b"Head").text()}) == 5


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "its end is missing": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes instead of"),
    "it is too long": (lambda path: path.write_bytes(path.read_bytes() + b"0"), "bytes instead of"),
    "it is empty": (lambda path: os.truncate(path, 0), "does not begin with"),
    "it is gone": (Path.unlink, "No such file"),
    "it is something else": (lambda path: path.write_text("[1]\n"), "does not begin with"),
    "its first line is cut": (lambda path: os.truncate(path, 50), "does not begin with"),
    "it is the part of another process": (lambda path: path.write_bytes((path.parent / "0-0").read_bytes()), "0,0"),
    "it is a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
    "it is a folder": (lambda path: (path.unlink(), path.mkdir()), "directory|not a regular file"),
    "it never ends": (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "not a regular file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    keep(tmp_path)
    damage, says = DAMAGES[name]
    damage(tmp_path / SLOTS[1] / "1-1")
    with pytest.raises((OSError, ValueError), match=says):
        read_part(tmp_path / SLOTS[1], 1, 1, whole=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", 0),
        ("number", True),
        ("steps", 8),
        ("steps", 0),
        ("m", -1),
        ("m", 1 << 60),
        ("nb", 0),
        ("nb", 5.0),
        ("P", 0),
        ("p", 1),
        ("q", 1),
        ("dtype", "object"),
        ("dtype", ["float64"]),
        ("elapsed_s", -1.0),
        ("elapsed_s", "1"),
        ("unix", 1e300),
        ("about", None),
        ("generation", 7),
        ("more", 1),
    ],
)
def test_impossible_values_are_refused_although_the_digest_fits(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    dumps = json.dumps
    monkeypatch.setattr(checkpoint.json, "dumps", lambda said, **how: dumps({**said, name: value}, **how))
    head = head_of(part_of())
    with pytest.raises(ValueError, match=r"^(its|process)"):
        read_head(io.BytesIO(head))  # type: ignore[arg-type]


@pytest.mark.parametrize("notes", [[1], {"blocks": [1.0]}, {"blocks": "0"}, {"blocks": "x" * 16}])
def test_notes_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, notes: Any) -> None:
    dumps = json.dumps
    monkeypatch.setattr(checkpoint.json, "dumps", lambda said, **how: dumps({**said, "notes": notes}, **how))
    with pytest.raises(ValueError):
        read_head(io.BytesIO(head_of(part_of())))  # type: ignore[arg-type]


def test_a_head_takes_whole_pages_and_no_more_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(head_of(part_of())) == PAGE
    assert len(head_of(part_of(notes={"blocks": [0.0] * 1000}))) % PAGE == 0
    monkeypatch.setattr(checkpoint, "MAX_HEADER_BYTES", PAGE)
    with pytest.raises(ValueError, match=f"the limit is {PAGE} bytes"):
        head_of(part_of(notes={"blocks": [0.0] * 1000}))
    monkeypatch.undo()
    larger = head_of(part_of()).replace(b"%010d" % PAGE, b"%010d" % (checkpoint.MAX_HEADER_BYTES + 1), 1)
    with pytest.raises(ValueError, match="has an invalid size"):
        read_head(io.BytesIO(larger))  # type: ignore[arg-type]


def test_a_part_that_changes_before_it_is_loaded_is_refused(tmp_path: Path) -> None:
    first = keep(tmp_path)
    other = dataclasses.replace(first, steps=5)
    with pytest.raises(ValueError, match="another checkpoint"):
        load(
            tmp_path / SLOTS[1], other, BlockCyclic(M, NB, 0, 1), BlockCyclic(N, NB, 0, 1), np.empty((M, N)).__setitem__
        )


@pytest.mark.parametrize("link", ["the part under way", "the part", "the slot"])
def test_links_in_a_folder_of_checkpoints_lead_to_no_other_file(tmp_path: Path, link: str) -> None:
    """A folder may come from another person: no file outside of it is written."""
    own = tmp_path / "mine"
    own.mkdir()
    (own / "0-0").write_text("my file")
    slot = tmp_path / "kept" / SLOTS[1]
    slot.mkdir(parents=True)
    if link == "the slot":
        slot.rmdir()
        slot.symlink_to(own)
        with pytest.raises(OSError, match="symbolic link"):
            write_part(slot, part_of(), WHOLE)
    else:
        (slot / {"the part": "0-0", "the part under way": ".0-0.part"}[link]).symlink_to(own / "0-0")
        write_part(slot, part_of(notes={}), WHOLE)
        assert read_part(slot, 0, 0, whole=True)[0] == part_of(notes={})
    assert (own / "0-0").read_text() == "my file"
    assert [one.name for one in own.iterdir()] == ["0-0"]


def test_a_full_disk_leaves_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of()
    numbers = WHOLE.copy()
    writer = Writer(tmp_path, WHOLE, lambda copy: np.copyto(copy, numbers))
    writer.write(part)
    writer.wait()
    before = (tmp_path / SLOTS[1] / "0-0").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    numbers[:] = 0.0
    writer.write(part)
    writer.wait()
    assert writer.error is not None
    assert writer.error.errno == 28
    assert not writer.busy
    assert (tmp_path / SLOTS[1] / "0-0").read_bytes() == before
    assert [path.name for path in (tmp_path / SLOTS[1]).iterdir()] == ["0-0"]


@pytest.mark.parametrize("at_once", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_part_in_pieces_has_the_bytes_of_a_part_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, dtype: str
) -> None:
    """Pieces of a page and more, which end within rows and entries; a row may be longer than a piece."""
    monkeypatch.setattr(checkpoint, "AT_ONCE", at_once * PAGE)
    m, n = 97, 1031 if at_once == 1 else 131
    part = part_of(m=m, n=n, nb=3, steps=1, dtype=dtype)
    numbers = np.random.default_rng(2).standard_normal((m, n)).astype(dtype)
    write_part(tmp_path / SLOTS[1], part, numbers)
    whole = (tmp_path / SLOTS[1] / "0-0").read_bytes()
    heights = []

    def rows_of(i0: int, i1: int) -> Any:
        heights.append(i1 - i0)
        return numbers[i0:i1]

    writer = DirectWriter(tmp_path, rows_of)
    writer.write(part)
    assert (writer.error, writer.busy) == (None, False)
    assert (tmp_path / SLOTS[1] / "0-0").read_bytes() == whole
    assert sum(heights) == m
    assert max(heights) * n * numbers.itemsize <= max(at_once * PAGE, n * numbers.itemsize)
    header, _ = read_part(tmp_path / SLOTS[1], 0, 0, whole=True)
    back, sizes = np.zeros_like(numbers), []

    def put(rows: Any, lines: Any) -> None:
        back[rows] = lines
        sizes.append(lines.nbytes)

    load(tmp_path / SLOTS[1], header, part.rows, part.columns, put)
    assert np.array_equal(back, numbers)
    assert max(sizes) <= max(at_once * PAGE, n * numbers.itemsize)


def test_a_failed_direct_write_leaves_the_other_checkpoint(tmp_path: Path) -> None:
    part = part_of()

    def fails(i0: int, i1: int) -> Any:
        raise RuntimeError("the device is lost")

    writer = DirectWriter(tmp_path, fails)
    writer.write(part)
    assert str(writer.error) == "the device is lost"
    assert list((tmp_path / SLOTS[1]).iterdir()) == []


def takes_direct_writes(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("refuses", ["nobody", "the file system", "the disk"])
def test_direct_and_cached_writes_give_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """The file has several pages and a rest; if the file system or the disk refuses, all data use the cache."""
    if not takes_direct_writes(tmp_path):
        pytest.skip("the temporary folder's file system takes no direct writes")
    n = 3 * PAGE // 8 + 5
    part = part_of(m=2, n=n, nb=1, steps=1)
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
    numbers = np.random.default_rng(1).standard_normal((2, n))
    writer = Writer(tmp_path, np.empty((2, n)), lambda copy: np.copyto(copy, numbers))
    writer.write(part)
    writer.wait()
    assert writer.error is None
    assert any(direct) == (refuses == "nobody")
    assert not direct[-1]
    found, _ = read_part(tmp_path / SLOTS[1], 0, 0, whole=True)
    local = np.empty((2, n))
    load(tmp_path / SLOTS[1], found, part.rows, part.columns, local.__setitem__)
    assert np.array_equal(local, numbers)
