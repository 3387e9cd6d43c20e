"""Test which values become inputs of the library, which are refused, and the device of the computation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.errors import UsageError
from mxpeak.kernels.arrays import xp as compat
from mxpeak.library.inputs import TYPES, check_finite, device_for, device_of, is_tensor, read

torch = pytest.importorskip("torch")
Namespace = pytest.importorskip("mxpeak.kernels.torch.engine.array_namespace").Namespace
tensors = pytest.importorskip("mxpeak.kernels.torch.engine.tensors")


def test_an_array_is_read_as_it_is() -> None:
    A = np.ones((3, 2), ">f4")[::2]
    found = read(A, "A")
    assert found.array is A
    assert (found.dtype, found.shape, found.device, found.is_tensor) == (np.float32, (2, 2), "cpu", False)
    assert read([[1, 2]], "A").device is None


@pytest.mark.parametrize("name", TYPES)
def test_arrays_and_tensors_of_one_type_are_the_same_input(name: str) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    values = np.arange(12).reshape(3, 4).astype(dtype)
    A, T = read(values, "A"), read(tensors.tensor_of(values), "A")
    assert (A.dtype, A.shape, A.device) == (T.dtype, T.shape, T.device)
    assert np.shares_memory(T.on(None), values)
    assert np.array_equal(T.on(None, np.dtype(np.complex128)), values.astype(np.complex128))
    cpu = tensors.device_at("cpu")
    assert A.on(cpu).data_ptr() == values.ctypes.data == T.on(cpu).data_ptr()
    assert isinstance(A.result(torch.ones(2)), np.ndarray)
    assert isinstance(T.result(np.ones(2)), torch.Tensor)


def test_functions_without_gradients_refuse_tensors_that_require_one() -> None:
    A, b = torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    refused = {
        "A": (A.clone().requires_grad_(), b, r"computation with A, but the factors of .* use mxpeak\.Solver\(A\)"),
        "b": (A, b.clone().requires_grad_(), r"b requires a gradient, .*b\.detach\(\), or .*no_grad"),
    }
    for of_A, of_b, says in refused.values():
        with pytest.raises(UsageError, match=says):
            mx.lu_factor(of_A).solve(of_b)
        with torch.no_grad():
            assert np.allclose(mx.lu_factor(of_A).solve(of_b)[0].numpy(), 1.0, rtol=0, atol=1e-9)
    for function in (mx.norm, mx.column_norms):
        with pytest.raises(UsageError, match="A requires a gradient"):
            function(torch.nn.Parameter(A), "max")


def test_foreign_bytes_and_conjugate_views_are_copied_where_they_are_used() -> None:
    z = np.array([1 + 2j, 3 - 1j])
    cpu = tensors.device_at("cpu")
    for values in (z.astype(">c16"), z.conj()[::-1].conj()[::-1], torch.tensor(z.conj()).conj()):
        for device in (None, cpu):
            assert np.array_equal(np.asarray(read(values, "z").on(device)), z)
    assert np.array_equal(read(torch.tensor(-1j * z.conj()).conj().imag, "z").on(None), z.real)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[1.0, 2.0], [3.0]], r"^A is not a numeric array: "),
        (np.ma.masked_greater(np.array([1.0, 9.0]), 5.0), r"which mxpeak does not support; use A\.filled\(0\)"),
        (sparse.eye_array(2), r"A is sparse; use A\.toarray\(\), or mxpeak\.gmres$"),
        (torch.eye(2).to_sparse(), r"A is sparse; use A\.to_dense\(\), or mxpeak\.gmres$"),
        (np.eye(2, dtype=object), "A has dtype object, which mxpeak does not support; use float64, .* or integers"),
        (np.array(["1"]), r"A has dtype <U1.*A\.astype\(float\)"),
        (np.ones(1, np.longdouble), "A has dtype "),
        (torch.ones(1).to(torch.float8_e4m3fn), r"A has dtype torch\.float8_e4m3fn.*A\.double\(\)"),
        (torch.complex32, r"A has dtype torch\.complex32"),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_what_is_not_a_dense_numeric_array_is_refused(values: Any, says: str) -> None:
    values = torch.ones(1, dtype=values) if isinstance(values, torch.dtype) else values
    with pytest.raises(UsageError, match=says):
        read(values, "A", instead="mxpeak.gmres")


def test_tensors_are_distinguished_from_other_types() -> None:
    assert is_tensor(torch.ones(2))
    assert is_tensor(torch.nn.Parameter(torch.ones(2)))
    assert not any(map(is_tensor, (np.ones(2), 1.0, [1.0], None, torch.float64)))


def test_integers_and_arrays_without_masked_entries_are_read() -> None:
    for dtype in (bool, np.int8, np.uint64):
        assert read(np.ones(2, dtype), "A").on(None, np.dtype(np.float64)).tolist() == [1.0, 1.0]
    assert read(np.ma.array([3.0]), "A").array.tolist() == [3.0]


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 3)])
@pytest.mark.parametrize("strip", [1, 4, 1 << 24])
def test_the_first_entry_that_is_not_finite_is_named(
    shape: tuple[int, ...], strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxpeak.library.inputs.STRIP", strip)
    if not shape:
        return check_finite(np.empty((0, 2)), "A", compat)
    for first in np.ndindex(*shape):
        for bad in (np.nan, np.inf, -np.inf):
            A = np.zeros(shape)
            check_finite(A, "A", compat)
            A[first] = bad
            A[(-1,) * len(shape)] = np.nan
            count = 1 + (first != tuple(size - 1 for size in shape))
            where = ", ".join(map(str, first))
            for values in (A, torch.from_numpy(A)):
                xp = compat if values is A else Namespace(values.device)
                with pytest.raises(UsageError, match=rf"A\[{where}\] is .*: {count} of {A.size} entries of A"):
                    check_finite(values, "A", xp)
    return None


def test_the_device_is_that_of_the_tensors_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "device_named", lambda name: f"opened {name}")
    assert [device_of(values) for values in (np.ones(1), torch.ones(1), 3.0)] == ["cpu", "cpu", None]
    for name, devices, device in (
        ("auto", (), None),
        ("auto", ("cpu", None), None),
        ("cpu", ("cpu", None), None),
        ("auto", ("cuda:0",), "opened cuda:0"),
        ("auto", ("cuda:1", None), "opened cuda:1"),
        ("cuda", ("cuda:1", "cpu"), "opened cuda:1"),
        ("cuda", ("cpu",), "opened cuda"),
        ("cuda:0", ("cuda:0", "cpu"), "opened cuda:0"),
    ):
        assert device_for(name, *devices) == device
    for name, devices, advice in (
        ("auto", ("cuda:0", "cuda:1"), "cuda:0 and cuda:1"),
        ("auto", ("cuda:0", "cpu"), 'use device="cuda:0"'),
        ("auto", ("meta",), r"is on meta.*\.cpu\(\)"),
        ("cpu", ("cuda:0",), r"use \.cpu\(\) to copy"),
        ("cuda:0", ("cuda:1",), r'use \.to\("cuda:0"\) to copy'),
        *(
            (unknown, (), "use one of the strings auto, cpu, cuda")
            for unknown in ("gpu", "tpu", "cuda:x", "cuda1", "", "mps:1")
        ),
        ("mps", (), 'has no fp64, and mxpeak supports such a device only for LU factors; use device="cpu"'),
        ("auto", ("mps:0",), r"is on mps:0, but mxpeak supports only cpu and cuda here; use \.cpu\(\)"),
    ):
        with pytest.raises(UsageError, match=advice):
            device_for(name, *devices)


@pytest.mark.parametrize("asked", [0, None, ["cpu"], b"cpu", True])
def test_a_device_that_is_no_text_is_refused(asked: Any) -> None:
    with pytest.raises(UsageError, match=r"unknown device .*; use one of the strings auto, cpu, cuda"):
        device_for(asked)


@pytest.mark.parametrize("asked", [["fp32"], {}, 64, None])
def test_a_precision_that_is_no_text_is_refused(asked: Any) -> None:
    with pytest.raises(UsageError, match="unknown precision"):
        mx.solve(np.eye(2), np.ones(2), precision=asked)
