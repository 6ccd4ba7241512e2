"""Work in a fork of a test's process, the one way there: a fork that raised would go on with the tests of its parent.

It would answer in the parent's name, and the whole run would wait for ever.
"""

import os
import traceback
from collections.abc import Callable

RAISED = 70  # exit code of work that raised


def started(work: Callable[[], int | None]) -> int:
    """Start ``work`` in a fork that ends with it, whatever it does; its exit code is what it returns, or 0."""
    child = os.fork()
    if child:
        return child
    code = RAISED
    try:
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(work: Callable[[], int | None]) -> int:
    """Run ``work`` in a fork; its exit code, or -9 where it was killed by signal 9."""
    return os.waitstatus_to_exitcode(os.waitpid(started(work), 0)[1])
