#!/usr/bin/env bash
# The runs behind results/development/protocol.md: bash results/development/protocol.sh [WORKERS]
set -eu
workers=${1:-2}
dev() {  # FILE [OPTIONS]: rows of the MNIST table on five development seeds, last small batches dropped
  file=$1; shift
  sphere sweep mnist --development --skip 20 --seeds 5 --workers "$workers" --quiet --out runs/development \
    --columns Clean 40% --set drop_last=true --save "results/development/protocol-$file.json" "$@"
}
for initialization in torch xavier; do
  for batch in 64 32; do
    settings=(--set "initialization=$initialization" --set "batch=$batch" --set "replay_batch=$batch")
    dev "$initialization-$batch-der" --methods DER++ "${settings[@]}"
    for joint in false true; do
      dev "$initialization-$batch-joint-$joint" --methods ER MIR ER-ACE "${settings[@]}" \
        --set "options={\"joint_batch\": $joint}"
    done
  done
done
dev slow --methods DER++ --set initialization=torch --set lr=0.03 --set virtual_lr=0.03  # as published
for joint in false true; do  # the published head of ER-ACE
  dev "cosine-joint-$joint" --methods ER-ACE --set initialization=torch --set head=cosine \
    --set "options={\"joint_batch\": $joint}"
done
for initialization in torch xavier; do  # with the last small batch, as before
  dev "$initialization-64-kept" --methods ER MIR DER++ ER-ACE --set drop_last=false \
    --set "initialization=$initialization"
done
