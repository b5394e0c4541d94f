from . import optimizer  # noqa: F401
from .optimizer import AdamW, Optimizer  # noqa: F401
