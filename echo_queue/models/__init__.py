"""What is known of a model before it is opened: its shape, its family, why it is refused, and where its files are.

Nothing here imports torch or needs a network, but for the download of a hub model.
"""

from echo_queue.models.config_file import model_shape
from echo_queue.models.refusals import model_refusals
from echo_queue.models.shape import ModelShape, shape_of

__all__ = ["ModelShape", "model_refusals", "model_shape", "shape_of"]
