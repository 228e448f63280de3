"""Writes the golden answers that are missing: of a case that is new. What is there is never written again.

python -m tests.golden.record
"""

from __future__ import annotations

import gzip
import json

from tests.golden.cases import BUNDLE, CASES, LEVELS, answers_path, prefixes, references, sources, written

from hmc.serving import Translator


def main() -> None:
    """Asks ONNX Runtime on one thread."""
    for level in LEVELS:
        with Translator(BUNDLE, level, device="cpu", threads=1, workers=1) as translator:
            for case in CASES:
                path = answers_path(level, case)
                if path.exists():
                    continue
                texts = sources(case)
                if case.score:
                    answers = translator.score(texts, references(case), case.options)
                else:
                    answers = translator.translate(texts, case.options, prefixes(case), segmentation="none")
                lines = [json.dumps(written(answer), ensure_ascii=False) for answer in answers]
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


if __name__ == "__main__":
    main()
