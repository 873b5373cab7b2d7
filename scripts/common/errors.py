"""What ends the program with one line; the class gives the exit status."""


class Failure(Exception):
    status = 1


class OptionError(Failure):
    status = 2


class InputError(Failure):
    """A bad or missing input file; the message begins with `file: ` or `file:line: `."""
    status = 3


class EnvironmentFailure(Failure):
    """A package that cannot be had."""
    status = 5
