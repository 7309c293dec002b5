"""The exceptions that the command line prints as one sentence."""


class UserError(ValueError):
    """A problem that the user can fix.

    The message names the file, row or key, what was received, and what to do. It has one line per
    problem. The command line prints it without a traceback and exits with code 2.
    """


class Interrupted(KeyboardInterrupt):
    """Ctrl+C, with a message that says what to do next, such as how to resume a training.

    The command line prints the message and exits with code 130.
    """
