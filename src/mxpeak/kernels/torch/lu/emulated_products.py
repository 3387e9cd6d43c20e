"""Select the method that emulates products of fp64 matrices on a device."""

from __future__ import annotations

from functools import partial

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.lu import EmulatedProducts
from mxpeak.kernels.residue_products import ResidueProducts
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu.cublas import cublas_emulation
from mxpeak.kernels.torch.lu.emulation import require_int8, subtract_emulated_product


def emulated_products(device: Device) -> EmulatedProducts:
    """Return the emulation of cuBLAS if it has one for this device, and otherwise that of mxpeak.

    Raises a ResourceError if the device has no products of 8-bit integers.
    """
    try:
        return cublas_emulation(device)
    except ResourceError:
        require_int8(device)
        return ResidueProducts(partial(subtract_emulated_product, device))
