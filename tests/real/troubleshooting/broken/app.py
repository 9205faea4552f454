"""Does not load."""

import nosuch  # noqa: F401
