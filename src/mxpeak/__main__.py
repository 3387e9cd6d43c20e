"""python -m mxpeak, and the console script; a signal while it is loaded ends it, too."""

from mxpeak.runtime.leash import end_at_once

end_at_once()

from mxpeak.cli.main import entry  # noqa: E402

if __name__ == "__main__":
    entry()
