import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The cores are shared with the servers and processes that tests start."""
    torch.set_num_threads(1)
