#!/usr/bin/env bash
# The runs behind the second part of results/development/calibration.md: bash results/development/refine.sh [WORKERS]
set -eu
workers=${1:-2}
old=(--set select.agreement=0.9 --set select.votes=plain --set select.strength=fixed --set every=4)  # the first choice
dev() {  # FILE TABLE SEEDS [OPTIONS]: some rows of a table on fresh development seeds
  file=$1; table=$2; seeds=$3; shift 3
  sphere sweep "$table" --development --skip 30 --seeds "$seeds" --workers "$workers" --quiet --out runs/development \
    --save "results/development/$file.json" "$@"
}
calibrated() {  # NAME [OPTIONS]: both hosts on MNIST and digits, at 40%
  name=$1; shift
  for place in "mnist 6" "digits 20"; do
    dev "refine-${place% *}-$name" ${place% *} "${place#* }" --columns 40% \
      --methods "ER + calibrated" "ER-ACE + calibrated" "${old[@]}" "$@"
  done
}
chosen() {  # NAME FILE-ENDING COLUMN [OPTIONS]: what came out, on all three problems
  name=$1; ending=$2; column=$3; shift 3
  for place in "mnist mnist 6" "digits digits 20" "frozen cifar10-frozen 2"; do
    read -r problem table seeds <<< "$place"
    dev "refine-$problem-$name-$ending" "$table" "$seeds" --columns "$column" \
      --methods "ER + calibrated" "ER-ACE + calibrated" "$@"
  done
}
for place in "mnist mnist 6" "digits digits 20" "frozen cifar10-frozen 4"; do
  read -r problem table seeds <<< "$place"
  dev "refine-$problem-hosts" "$table" "$seeds" --columns 40% --methods ER ER-ACE
  dev "refine-$problem-hosts-clean" "$table" "$seeds" --columns Clean --methods ER ER-ACE
done
calibrated base
calibrated quantile --set select.rule=quantile
calibrated alpha-0.25 --set select.alpha=0.25
calibrated backing-alone --set select.alpha=0
calibrated balanced --set select.votes=balanced
calibrated neighbors-4 --set select.neighbors=4 --set select.far=20
calibrated neighbors-16 --set select.neighbors=16 --set select.far=80
calibrated agreement-1 --set select.agreement=1
calibrated every-16 --set every=16
calibrated leave-one-out --set select.leave_one_out=true
for column in 40% Clean; do
  ending=$([ "$column" = Clean ] && echo clean || echo noisy)
  chosen chosen "$ending" "$column" --set select.strength=fixed
  chosen chosen-noise "$ending" "$column"
done
for strength in 0.25 0.4 0.6 1.5 2.5; do  # of MNIST's hosts, with and without
  for host in ER ER-ACE; do
    dev "strength-mnist-${host,,}-$strength" mnist 4 --columns 40% --methods "$host" --set "host.strength=$strength"
    dev "strength-mnist-${host,,}-calibrated-$strength" mnist 4 --columns 40% --methods "$host + calibrated" \
      --set "host.strength=$strength"
  done
done
for host in ER ER-ACE; do  # of uniform replay, on frozen features
  strengths=(1.5 2.5); [ "$host" = ER ] || strengths=(0.25 0.4 0.6)
  for table in cifar10-frozen cifar100-frozen; do
    for strength in "${strengths[@]}"; do
      dev "strength-$table-${host,,}-$strength" "$table" 4 --columns 40% --methods "$host" --set "host.strength=$strength"
    done
  done
done
for table in cifar10-frozen cifar100-frozen; do dev "strength-$table-hosts" "$table" 4 --columns 40% --methods ER ER-ACE; done
for strength in 1.5 2.5; do
  dev "strength-cifar100-frozen-er-calibrated-$strength" cifar100-frozen 3 --columns 40% --methods "ER + calibrated" \
    --set "host.strength=$strength"
done
for strength in 0.25 0.4 0.6; do
  dev "strength-cifar100-frozen-er-ace-calibrated-$strength" cifar100-frozen 3 --columns 40% \
    --methods "ER-ACE + calibrated" --set "host.strength=$strength"
done
for table in cifar10 cifar100; do  # neighbours by the network or by the encoder
  name=$([ "$table" = cifar10 ] && echo frozen || echo frozen100)
  dev "refine-$name-encoder-noisy" "$table-frozen" 3 --columns 40% --methods "ER + calibrated" "ER-ACE + calibrated" \
    --set geometry=encoder
done
dev refine-frozen100-noisy cifar100-frozen 3 --columns 40% --methods "ER + calibrated" "ER-ACE + calibrated"
dev refine-frozen-encoder-fixed-noisy cifar10-frozen 4 --columns 40% --methods "ER + calibrated" "ER-ACE + calibrated" \
  --set geometry=encoder --set select.strength=fixed
