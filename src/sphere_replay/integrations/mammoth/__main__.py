"""Puts the model file into a checkout of Mammoth."""

import argparse
import shutil
from pathlib import Path

from sphere_replay.integrations.mammoth import MODEL_FILE


def main() -> None:
    """Copy it, if the folder is what it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of Mammoth, with main.py in it")
    checkout: Path = parser.parse_args().checkout
    models = checkout / "models"
    if not (models / "utils" / "continual_model.py").is_file():
        parser.error(f"{models} holds no utils/continual_model.py: name a checkout of Mammoth")
    shutil.copyfile(MODEL_FILE, models / MODEL_FILE.name)
    print(f"{models / MODEL_FILE.name} is there. In {checkout}:")
    print("python main.py --model er_sphere --dataset seq-mnist --buffer_size 200 --lr 0.03")


if __name__ == "__main__":
    main()
