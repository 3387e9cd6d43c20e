"""Load the schema of the result file as a validator."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema

SCHEMA = json.loads((files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8"))


VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
