"""`python -m fencepost.cli`: the same as `fencepost`."""

import sys

from fencepost_command import main

if __name__ == "__main__":
    sys.exit(main())
