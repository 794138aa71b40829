"""`python -m ellm` is the `ellm` command."""

import sys

from ellm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
