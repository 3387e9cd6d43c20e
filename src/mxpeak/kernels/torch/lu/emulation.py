"""Emulate fp64 products by exact INT8 products on a device; `contract.emulation` describes the method."""

from __future__ import annotations

from math import log2
from typing import Any

import torch

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.emulation import (
    BITS,
    LEAST,
    NATIVE,
    PART,
    SLACK,
    SUBNORMAL,
    TINY,
    WORD,
    Emulation,
    blocks,
    emulated_with,
    moduli_for,
    part_residues,
    residues,
)
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu import blas

Tensor = Any

#: The largest number of rows and columns of a block of C. A block of this size needs 0.9 GiB of workspace if k is
#: small. At k = DEPTH, scaled operands take 1 GiB, and Triton's 16 planes of residues another 2 GiB.
BLOCK = 4096
#: Rows, columns and k of INT8 products are padded with zeros to multiples of this number, which the libraries require.
MULTIPLE = 32


def subtract_emulated_product(device: Device, C: Tensor, A: Tensor, B: Tensor) -> Emulation:
    """Compute C -= A B in place by blocks, and return the counts."""
    require_int8(device)
    if C.stride(1) != 1:
        C, A, B = C.T, B.T, A.T  # kernels need C by rows
    (m, k), n, counts = A.shape, B.shape[1], Emulation()
    for rows, columns, depths in blocks(m, n, k, BLOCK):
        for depth in depths:
            counts += _subtract_block(device, C[rows, columns], A[rows, depth], B[depth, columns])
    return counts


def require_int8(device: Device) -> None:
    """Raise a ResourceError if the device has no INT8 products: they need compute capability 7.5, or gfx908."""
    if not device.is_gpu or torch.version.hip is not None:
        return  # torch multiplies INT8 matrices on every CPU, and every GPU that ROCm supports has INT8 products
    chip = device.chip
    if (chip.major, chip.minor) < (7, 5):
        raise ResourceError(
            f"emulated fp64 needs INT8 products (compute capability 7.5 or later), but {chip.name} has compute "
            f"capability {chip.major}.{chip.minor}; use native fp64"
        )


def _subtract_block(device: Device, C: Tensor, A: Tensor, B: Tensor) -> Emulation:
    """Compute C -= A B for one block, by residues if possible, and return how."""
    (a, by_row), (b, by_column) = _scaled(A), _scaled(B.T)
    if bool(by_row.isfinite().all() & by_column.isfinite().all()):
        p, q, moduli = _significant_bits(device, a, b)
        if moduli:
            shift = _exponent(by_row) - p, _exponent(by_column) - q
            if device.triton:
                from mxpeak.kernels.torch.triton.emulation import launch_subtract

                launch_subtract(C, a, b, (p, q), shift, moduli)
            else:
                a, b = torch.round(a * _power(p)[:, None]), torch.round(b * _power(q)[:, None])
                e = shift[0][:, None] + shift[1]
                half, M = e >> 1, float(residues(moduli).product)
                C -= _fraction(device, a, b, moduli).mul_(M).mul_(_power(half)).mul_(_power(e - half))
            return emulated_with(moduli)
    blas.subtract_product(device, C, A, B, "library")
    return NATIVE


def _scaled(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of A scaled to a maximum in [1/2, 1), and the largest absolute value of each row.

    Entries other than zero remain different from zero.
    """
    largest = A.abs().amax(dim=1)
    e = -_exponent(largest)[:, None]
    half = e >> 1
    scaled = A * _power(half) * _power(e - half)
    return torch.where((scaled == 0) & (A != 0), SUBNORMAL * A.sign(), scaled).contiguous(), largest


def _exponent(x: Tensor) -> Tensor:
    """Return e with |x| in [2^(e-1), 2^e), or 0 if x is 0."""
    return torch.frexp(x).exponent.to(torch.int64)


def _power(e: Tensor) -> Tensor:
    """Return 2^e in fp64; exponents below -1022 give 2^-1022."""
    return ((e.clamp(min=-1022) + 1023) << 52).view(torch.float64)


def _significant_bits(device: Device, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the bits of the rows of A' and of the columns of B', and the number of moduli: 0 if there are too many.

    Products of bf16 numbers estimate |A||B|, because bf16 has the range of fp32.
    """
    (m, k), n = a.shape, b.shape[0]
    G = device.zeros(m, n, dtype=torch.float32)
    left, right = (torch.where(x == 0, x, x.abs().clamp(min=TINY)).to(torch.bfloat16) for x in (a, b))
    blas.subtract_product(device, G, left, right.T, "library")
    G = G.double().neg_()
    inverse = torch.where(G > 0, 1 / G, 0)
    by_row = (inverse * b.abs().sum(dim=1)).amax(dim=1)
    by_column = (inverse * a.abs().sum(dim=1)[:, None]).amax(dim=0)
    p, q = (BITS + _exponent(SLACK * ratio) for ratio in (by_row, by_column))
    least = torch.where(G > 0, G, torch.inf).amin()
    largest = (G * _power(p)[:, None] * _power(q)).amax()
    smallest, bits = torch.stack((least, largest)).tolist()
    return p, q, moduli_for(log2(bits) if bits > 0 else 0.0) if smallest >= k * LEAST else 0


def _fraction(device: Device, a: Tensor, b: Tensor, count: int) -> Tensor:
    """Return A' B' / M, where M is the product of `count` moduli; the arguments are rows of A' and columns of B'.

    The words are those of `contract.emulation.residues`. Their products with residues are summed exactly. The last sum
    starts with the largest term, so that each addition is exact or has a relative error of u.
    """
    (m, k), n, constants = a.shape, b.shape[0], residues(count)
    left, right = (device.zeros(*map(_padded, x.shape), dtype=torch.int8) for x in (a, b))
    sums = device.zeros(len(constants.words), m, n)
    for t, modulus in enumerate(constants.moduli):
        left[:m, :k], right[:n, :k] = _residue(a, modulus), _residue(b, modulus)
        R = _reduced(torch._int_mm(left, right.T)[:m, :n].double(), modulus)
        for w, words in enumerate(constants.words):
            sums[w].add_(R, alpha=words[t])
    fraction = sums[0].mul_(2.0**-WORD)
    fraction -= torch.round(fraction)
    for w in range(1, len(sums)):
        fraction.add_(sums[w], alpha=2.0 ** (-WORD * (w + 1)))
    return fraction


def _padded(size: int) -> int:
    """Return the size rounded up to a multiple of MULTIPLE."""
    return -(-size // MULTIPLE) * MULTIPLE


def _residue(x: Tensor, modulus: int) -> Tensor:
    """Return the INT8 residues of integers of less than 3·PART bits, which are divided into three parts."""
    power, second_power = part_residues(modulus)
    high = torch.round(x * 2.0 ** (-2 * PART))
    x = x - high * 2.0 ** (2 * PART)
    middle = torch.round(x * 2.0**-PART)
    x = x - middle * 2.0**PART
    return _reduced(x + middle * power + high * second_power, modulus).to(torch.int32).to(torch.int8)


def _reduced(x: Tensor, modulus: int) -> Tensor:
    """Return the residues in [-m/2, m/2]. As an INT8 number, 128 becomes -128, which is equal modulo 256."""
    return x - torch.round(x * (1.0 / modulus)) * modulus
