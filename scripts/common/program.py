"""What every script's main function does: bad options, failures and signals end it with one line."""
import argparse
import signal
import sys

from common.errors import Failure, OptionError


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise OptionError(f"{message}; --help shows how to call it")


def _stop(number, _):
    sys.exit(128 + number)


def main(name, run):
    """Calls run(arguments); the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        run(sys.argv[1:])
    except Failure as failure:
        print(f"{name}: error: {failure}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt:
        return 130
    return 0
