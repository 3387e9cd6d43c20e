"""python -m mxpeak, and the console script; a signal while it is loaded ends it, too, and all ranks where it cannot."""

from mxpeak.runtime.leash import cannot_begin, end_at_once

end_at_once()

try:
    from mxpeak.cli.main import entry
except ImportError:
    cannot_begin()

if __name__ == "__main__":
    entry()
