"""A build hook that adds the stub of `mxpeak.run` to the wheel."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RunStub(BuildHookInterface):
    """Generate mxpeak/library/run.pyi from the options of the benchmarks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stub and add it to the wheel; an editable install has none."""
        if version == "editable":
            return
        sys.path[:0] = [str(Path(self.root, "src")), str(Path(self.root, "tools"))]
        from typed_settings import stub

        file = Path(tempfile.mkdtemp()) / "run.pyi"
        file.write_text(stub(), encoding="utf-8")
        build_data["force_include"][str(file)] = "mxpeak/library/run.pyi"
