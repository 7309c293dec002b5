"""The exception for problems that the user can fix."""


class UserError(ValueError):
    """A problem that the user can fix.

    The message names the file, row or key, what was received, and what to do. It has one line per
    problem. The command line prints it without a traceback and exits with code 2.
    """
