"""What a real call launches: the user's function runs in a child process, and MLX's lazy graph of it is counted.

    request -> child: target -> recording -> expand -> tape -> cost -> Traced -> (parent) fixes -> report

Nothing is evaluated: MLX builds its graph, and the calls that built it are recorded with the lines that made them.
"""

from fuselint.trace.model import Request, Traced
from fuselint.trace.process import Tracing

__all__ = ["Request", "Traced", "Tracing"]
