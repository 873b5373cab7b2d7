"""What every script's main function does: bad options, failures and signals end it with one line."""
import argparse
import difflib
import errno
import os
import signal
import sys

from common.errors import Failure, InputError, OptionError


UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # without a name: of standard output


class Parser(argparse.ArgumentParser):
    """Options may be written with _ for -, as the programs take them."""

    def parse_args(self, args=None, namespace=None):
        spelled = []
        for word in args if args is not None else sys.argv[1:]:
            name, mark, value = word.partition("=")
            spelled.append((name.replace("_", "-") if name.startswith("--") else name) + mark + value)
        known, unknown = self.parse_known_args(spelled, namespace)
        if unknown:
            self._refuse(next((word for word in unknown if word.startswith("-")), unknown[0]))
        return known

    def _refuse(self, word):
        name = word.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"unexpected word '{word}'")
        near = difflib.get_close_matches(name, self._option_string_actions, 1, 0.75)
        self.error(f"unknown option '{name}'" + (f": did you mean {near[0]}?" if near else ""))

    def _print_message(self, message, file=None):
        """argparse's own keeps silent about a full disk."""
        (file or sys.stderr).write(message)

    def error(self, message):
        raise OptionError(f"{message}; --help shows how to call it")


def _stop(number, _):
    sys.exit(128 + number)


def _drop_output():
    """What is still buffered would fail again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(name, run):
    """Calls run(arguments); the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        try:
            run(sys.argv[1:])
        except SystemExit as end:  # of --help
            if end.code:
                raise
        sys.stdout.flush()
    except BrokenPipeError:  # who read it has left, as head does
        _drop_output()
        return 128 + signal.SIGPIPE
    except Failure as failure:
        print(f"{name}: error: {failure}", file=sys.stderr)
        return failure.status
    except OSError as error:
        if error.filename or error.errno not in UNWRITTEN:
            raise
        _drop_output()
        print(f"{name}: error: standard output cannot be written ({error.strerror}): make room there or send "
              "it elsewhere", file=sys.stderr)
        return InputError.status
    except KeyboardInterrupt:
        return 130
    return 0
