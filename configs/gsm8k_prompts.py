"""Writes the prompts of GSM8K for `environment.kind = "math"`: python configs/gsm8k_prompts.py IN.parquet OUT.jsonl

The data set (openai/gsm8k, arXiv 2110.14168) has a `question`, and an `answer` that ends in "#### 1,234".
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet

INSTRUCTION = "Solve the problem step by step, and put the final answer in \\boxed{}. /no_think"
"""Qwen3 answers without a chain of thought before its answer if a message ends in /no_think; other models ignore it."""


def row(question: str, answer: str) -> dict[str, object]:
    """Returns one prompt row, whose answer is the number alone. Raises `ValueError` if the answer names none."""
    _, mark, number = answer.rpartition("####")
    if not mark:
        raise ValueError(f"no final answer after ####: {answer!r}")
    message = {"role": "user", "content": f"{question.strip()}\n\n{INSTRUCTION}"}
    return {"prompt": [message], "answer": number.strip().replace(",", "")}


def main(source: Path, target: Path) -> None:
    table = pyarrow.parquet.read_table(source, columns=["question", "answer"])
    rows = [row(**entry) for entry in table.to_pylist()]
    target.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in rows), encoding="utf-8")
    print(f"{len(rows):,} prompts in {target}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
