"""Run the command line as `python -m dxn VERB ...`, for example with torchrun."""

import sys

from dxn.cli import main

sys.exit(main())
