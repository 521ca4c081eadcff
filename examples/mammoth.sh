#!/bin/sh
# Mammoth's own ER and ours, on its own Split MNIST: sh examples/mammoth.sh path/to/mammoth [seeds]
# The environment needs Mammoth's requirements and sphere-replay; Mammoth downloads the images.
set -eu
checkout=${1:?name a checkout of Mammoth}
python -m sphere_replay.integrations.mammoth "$checkout"
cd "$checkout"
settings="--dataset seq-mnist --buffer_size 500 --minibatch_size 32 --batch_size 32 --lr 0.03 --n_epochs 1"
for seed in $(seq "${2:-5}"); do
    # shellcheck disable=SC2086  # words are meant
    python main.py --model er $settings --seed "$seed"
    for select in uniform sphere sphere-calibrated; do
        python main.py --model er_sphere --select "$select" $settings --seed "$seed"
    done
done
