"""What learner and workers import where the engine is `transformers`: with this module the fork server forks them."""

from importlib import import_module

from echo_queue.models.model_imports import spare_scipy

spare_scipy()
for module in (
    *("learner.training_loop", "workers.worker", "workers.engines.transformers.engine"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
):
    import_module(module)
import_module("echo_queue.weights.delta.compiled").prepare()
