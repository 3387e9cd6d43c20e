"""Record whether the fp64 products of a run are native or emulated, and reject or mark the run accordingly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, TypeVar

from mxpeak.bench.rules import Violation, ruling
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.contract import Kernels
from mxpeak.options import Run
from mxpeak.perf.emulation import CUBLAS, EmulationRequest, requested_emulation
from mxpeak.precision import precision
from mxpeak.records import Caution
from mxpeak.runtime.placement import emulation_pays
from mxpeak.solvers.fp64_probe import Fp64Products

NATIVE, EMULATED, AUTO = "native", "emulated", "auto"
AnyConfig = TypeVar("AnyConfig", bound=PlaceConfig)
#: The requirement of the TOP500 for the operations of HPL, and its current interpretation.
TOP500 = "the TOP500 counts double precision floating point operations, and no ruling on emulated fp64 is known"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of the fp64 products of a case.

    emulated   ranks whose products are emulated, of `ranks`
    bits       the fewest bits per entry that a rank keeps; None for native products, or if the bits vary
    request    the request for emulation, or None
    products   checked products: those of the solves if mxpeak emulates, otherwise repeated products of a few steps
    native     those of the checked products that were native, although the run is emulated
    """

    emulated: int
    ranks: int
    bits: int | None = None
    request: EmulationRequest | None = None
    products: int = 0
    native: int = 0

    @property
    def name(self) -> str:
        """Return `emulated` if any product was emulated, otherwise `native`."""
        return EMULATED if self.emulated or self.native < self.products else NATIVE

    @property
    def suspected(self) -> bool:
        """Return whether a solve's products must be checked, because they are emulated or emulation was requested."""
        return bool(self.emulated) or self.request is not None

    def checked(self, products: int, native: int, bits: int | None) -> Arithmetic:
        """Return the arithmetic after `products` further checks, in which `native` products were native.

        `bits` is the smallest number of bits that one of these products kept, or None if it is unknown.
        """
        bits = self.bits if bits is None else bits if not self.products else min(bits, self.bits or bits)
        return replace(self, products=self.products + products, native=self.native + native, bits=bits)

    def section(self) -> dict[str, Any]:
        """Return the keys of a result that describe the arithmetic."""
        if self.name == NATIVE:
            return {"fp64": NATIVE, "fp64_emulation": None}
        return {
            "fp64": EMULATED,
            "fp64_emulation": {
                "scheme": None if self.request is None else self.request.scheme,
                "bits": self.bits,
                "requested_by": None if self.request is None else self.request.variable,
                "ranks": self.emulated,
                "products": self.products,
                "native_products": self.native,
            },
        }

    def limit(self, section: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the section of a DGEMM limit with the arithmetic of the product; None without a limit."""
        return None if section is None else {**section, "fp64": EMULATED if self.emulated else NATIVE}

    def rules(self, mode: str) -> dict[str, Any]:
        """Return the section `rules` of a result of HPL; empty for native products in the official mode."""
        broken = [Violation("mode", f"--mode {mode} is for exploration; use --mode official")] * (mode != "official")
        if self.name == EMULATED:
            broken.append(Violation("fp64", f"products of fp64 matrices were emulated, but {TOP500}"))
        return {"mode": mode, **ruling(broken)} if broken else {}

    def cautions(self) -> list[Caution]:
        """Return warnings about requests without effect, native products in an emulated run, and too few bits."""
        if self.name == NATIVE:
            return [] if self.request is None else [self._no_effect(self.request)]
        cautions = []
        bits = precision("fp64").p
        if self.bits is not None and self.bits < bits:
            text = f"the emulation keeps {self.bits} bits per entry, fewer than the {bits} of fp64"
            cautions.append(Caution("fp64-bits", text, "use more slices or moduli, or --fp64 native"))
        if not self.emulated:
            counts = f"{self.products - self.native} of {self.products} checked products of the solve"
            text = f"the test products were native, but {counts} were emulated"
            cautions.append(Caution("fp64-fallback", text, "use --fp64 native to multiply natively"))
        elif self.native:
            text = f"the library multiplied natively in {self.native} of {self.products} checked products"
            hint = "give the library more workspace (a smaller --mem), or use --fp64 native"
            cautions.append(Caution("fp64-fallback", f"fp64 is emulated, but {text}", hint))
        if 0 < self.emulated < self.ranks:
            text = f"fp64 is emulated on {self.emulated} of {self.ranks} ranks"
            cautions.append(Caution("fp64-ranks", text, "use the same library and variables on all ranks"))
        return cautions

    def _no_effect(self, request: EmulationRequest) -> Caution:
        text = f"{request.variable} requests emulated fp64, but the products were native"
        needed = (
            "use cuBLAS of CUDA 13.0 Update 2 or later"
            if request.variable == CUBLAS
            else "use a build of the library in LD_PRELOAD for this version of cuBLAS or hipBLAS"
        )
        return Caution("fp64-request", text, f"{needed}, or unset the variable")


def arithmetic_of(
    products: Fp64Products, kernels: Kernels, comm: Communicator, environment: Mapping[str, str] = os.environ
) -> Arithmetic:
    """Return the arithmetic of all ranks from that of this rank. Collective over comm."""
    (emulated,) = allreduce_scalars(comm, [float(products.emulated)], "sum")
    bits = fewest_bits(comm, products.bits)
    architecture = str(kernels.device_facts().get("device_architecture", ""))
    own = kernels.fp64_emulation()
    request: EmulationRequest | None = (
        EmulationRequest("--fp64 emulated", own.scheme, own.bits)
        if own is not None
        else comm.bcast_object(requested_emulation(environment, architecture))
    )
    if bits is None and request is not None:
        bits = request.bits
    return Arithmetic(int(emulated), comm.size, bits, request)


def fewest_bits(comm: Communicator, bits: int | None) -> int | None:
    """Return the smallest number of bits of all ranks that have one, or None. Collective over comm."""
    (negated,) = allreduce_scalars(comm, [-inf if bits is None else -float(bits)], "max")
    return int(-negated) if isfinite(negated) else None


def check_request(actual: Arithmetic, wanted: str, *, explicit: bool) -> None:
    """Raise an error if the arithmetic is not the requested one; `explicit` is whether the user requested it."""
    if wanted == EMULATED and actual.emulated < actual.ranks:
        missing = actual.ranks - actual.emulated
        raise ResourceError(
            f"--fp64 emulated: test products were native on {missing} of {actual.ranks} ranks; use --fp64 native"
        )
    if wanted == NATIVE and explicit and actual.emulated:
        by = "a library" if actual.request is None else f"{actual.request.variable} ({actual.request.scheme})"
        raise UsageError(
            f"--fp64 native: {by} emulates products of fp64 matrices on {actual.emulated} of {actual.ranks} ranks; "
            "unset LD_PRELOAD and the variable, or omit --fp64 native"
        )


@contextmanager
def restored_variable(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Return a context that restores the variable of cuBLAS, which `with_fp64` may change."""
    before = environment.get(CUBLAS)
    try:
        yield
    finally:
        if before is not None:
            environment[CUBLAS] = before


def with_fp64(
    run: Run[AnyConfig], comm: Communicator, environment: MutableMapping[str, str] = os.environ
) -> Run[AnyConfig]:
    """Return the run with --fp64 auto resolved, and switch the library's emulation off if --fp64 native is given.

    `auto` selects emulation only with --mode explore, and only if the GPUs of all ranks multiply slower in fp64 than in
    fp32 and can emulate fp64. The device must be resolved. cuBLAS reads its variable when it starts. Collective over
    comm.
    """
    config = run.config
    if config.fp64_products == AUTO:
        pays = config.explores and emulation_pays(config, comm)
        return run.with_choices({"fp64": EMULATED if pays else NATIVE})
    if config.fp64_products == NATIVE and not run.is_default("fp64") and CUBLAS in environment:
        environment[CUBLAS] = "0"
    return run
