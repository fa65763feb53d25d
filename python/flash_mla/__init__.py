"""FlashMLA's package name for libmla: the same calls, on Hopper GPUs and on CPUs.

Everything lives in the package `libmla`, so that this one may be replaced by FlashMLA's own while
`import libmla` goes on working.
"""

from libmla import *  # noqa: F403
from libmla import __all__, __version__  # noqa: F401
