"""Test other BLAS libraries than SciPy's: results, facts, and the libraries that are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pytest

from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.choose import select_blas
from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.blas_library import open_blas
from tests.support.blas_libraries import library


@pytest.fixture(autouse=True)
def _scipy_afterwards() -> Iterator[None]:
    yield
    blas.select("scipy")


@pytest.mark.parametrize("name", ["{}_", "scipy_{}_"])
def test_the_products_of_a_selected_library_are_used(tmp_path: Path, name: str) -> None:
    file = library(tmp_path, name)
    before = blas.address("dgemm")
    blas.select(str(file))
    assert blas.address("dgemm") != before
    assert blas.blas_facts() == {
        "library": "libown.so", "version": None, "architecture": None, "threads": None,
        "path": str(file), "lapack": "of SciPy",
    }  # fmt: skip
    C = np.zeros((3, 2))
    blas.gemm(2.0, np.arange(6.0).reshape(3, 2), np.eye(2), C)
    assert np.array_equal(C, 2.0 * np.arange(6.0).reshape(3, 2))
    with pytest.raises(ResourceError, match="lacks zgemm"):
        blas.address("zgemm")
    blas.select("scipy")
    assert blas.address("dgemm") == before


def test_facts_that_only_the_file_and_mkl_contain(tmp_path: Path) -> None:
    processor = "Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512), and Matrix Extensions (Intel(R) AMX)"
    file = library(tmp_path, "{}_", "int", "0", f'-DPROCESSOR="{processor}"')
    versioned = file.rename(tmp_path / "libown.so.3.11.0")
    link = tmp_path / "libown.so.3"
    link.symlink_to(versioned)
    blas.select(str(link))
    facts = blas.blas_facts()
    assert (facts["library"], facts["version"], facts["architecture"]) == ("libown.so.3", "3.11.0", "AVX-512 AMX")


def test_a_library_with_wrong_products_is_refused(tmp_path: Path) -> None:
    file, before = library(tmp_path, error="1"), blas.address("dgemm")
    with pytest.raises(ResourceError, match=r"dgemm of .*libown.so gives wrong results: .* in row 0, column 0; use"):
        blas.select(str(file))
    assert blas.address("dgemm") == before


def test_64_bit_integers_are_refused_by_name_and_by_behavior(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="contains dgemm_64_, which reads 64-bit integers; use the LP64 variant"):
        open_blas(str(library(tmp_path, "{}_64_", "long long")))
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ResourceError, match="reads 64-bit integers, and mxpeak passes 32-bit integers; use the LP64"):
        open_blas(str(library(other, "{}_", "long long")))


def test_a_library_without_all_routines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="lacks sgemv, strsv, ssymm, dgemv, dtrsv, dsymm; use a library with all"):
        open_blas(str(library(tmp_path, "{}_", "int", "0", "-DINCOMPLETE")))


def test_other_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(ResourceError, match=r"cannot be loaded: .*; use a shared library with .* or --blas scipy"):
        open_blas(str(text))
    foreign = tmp_path / "foreign.so"
    header = bytearray(Path(sys.executable).read_bytes()[:4096])
    header[4] = 1  # a 32-bit file
    foreign.write_bytes(header)
    with pytest.raises(ResourceError, match=r"not a library for this processor .*; use a library for this processor"):
        open_blas(str(foreign))
    header[4], header[18] = 2, 0xB7 if header[18] != 0xB7 else 0x3E  # a 64-bit file for Arm or x86-64
    foreign.write_bytes(header)
    with pytest.raises(ResourceError, match=r"foreign\.so is not a library for this processor .*; use a"):
        open_blas(str(foreign))
    with pytest.raises(ResourceError, match="there is no such file; use the path"):
        open_blas(str(tmp_path / "missing.so"))
    if path := find_library("m"):
        with pytest.raises(
            ResourceError, match=r"is not a BLAS library: it contains none of .*dgemm_.*; use the file of"
        ):
            open_blas(next(str(file) for folder in ("/lib", "/usr/lib") for file in Path(folder).rglob(path)))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    from mxpeak.configs.run import blas_library

    with pytest.raises(UsageError, match="'banana' is not a BLAS library; use one of scipy, openblas, mkl"):
        blas_library("banana")
    with pytest.raises(UsageError, match="--kernels reference computes without BLAS; remove --blas mkl"):
        select_blas("reference", "mkl")


def test_a_library_is_refused_before_kernels_are_compiled(tmp_path: Path) -> None:
    file, cache = library(tmp_path, error="1"), tmp_path / "cache"
    words = ["run", "hpl", "-N", "300", "--blas", str(file), "--out", str(tmp_path / "out")]
    environ = os.environ | {"MXPEAK_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "mxpeak", *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert "gives wrong results" in done.stderr
    assert list(cache.rglob("*.nbi")) == []


@pytest.mark.parametrize("name", ["openblas", "blis"])
def test_hpl_runs_with_installed_libraries(name: str, tmp_path: Path) -> None:
    try:
        open_blas(name)
    except ResourceError as error:
        pytest.skip(str(error))
    words = ["run", "hpl", "-N", "300", "--nb", "32", "--blas", name, "--json", "-", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "mxpeak", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["validation"]["passed"]
    facts = result["software"]["blas"]
    assert facts["library"] == name
    assert f"lib{name}" in facts["path"]
    assert result["config"]["blas"]["value"] == name
