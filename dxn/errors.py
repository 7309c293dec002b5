"""The one error a user can mend."""


class UserError(ValueError):
    """One plain sentence: the file, row or key, what was got and what to do. The CLI exits with code 2."""
