"""Lists of cases of which `make test` runs a few."""

from collections.abc import Iterable

import pytest


def exhaustive_except(cases: Iterable, *usual: object) -> list:
    """The cases for a parametrization. Those that are not `usual` run only with `make test-all`."""
    cases = list(cases)
    assert all(case in cases for case in usual)
    return [
        case
        if case in usual
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=_MARK)
        for case in cases
    ]


_MARK = pytest.mark.exhaustive
