"""The entry point of `python -m mxpeak` and of the console script. A signal during the imports ends the process."""

import signal

# Python's default handler would print a traceback, even during the imports below.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from mxpeak.runtime.parent_watch import end_on_signals, exit_on_load_error, open_streams

end_on_signals()
open_streams()

try:
    from mxpeak.cli.main import entry
except ImportError:
    exit_on_load_error()

if __name__ == "__main__":
    entry()
