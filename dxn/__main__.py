"""python -m dxn VERB ..."""

import sys

from dxn.cli import main

sys.exit(main())
