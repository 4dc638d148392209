"""Types of the fixtures in `conftest.py`."""

from collections.abc import Callable

from mlflow.entities import Run

from advisor_pytorch import TuningLogger

OnlyRun = Callable[[], Run]
History = Callable[[Run, str], dict[int, float]]
Start = Callable[..., TuningLogger]
Train = Callable[..., None]
