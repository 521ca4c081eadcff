#!/usr/bin/env bash
# The runs behind the first part of results/development/calibration.md: bash results/development/calibration.sh [WORKERS]
set -eu
workers=${1:-2}
begin=(--set select.agreement=0.9 --set select.votes=plain --set select.strength=fixed --set every=4)
kept=(--set select.unit_mass=false)
dev() {  # FILE TABLE [OPTIONS]: some rows of a table on three development seeds
  file=$1; table=$2; shift 2
  sphere sweep "$table" --development --seeds 3 --workers "$workers" --quiet --out runs/development \
    --save "results/development/$file.json" "$@"
}
both() {  # NAME [OPTIONS]: hosts with a calibrated selection on MNIST and on digits
  name=$1; shift
  for data in mnist digits; do
    dev "$data-$name" "$data" --methods "ER + calibrated" "ER-ACE + calibrated" --columns Clean 40% "${begin[@]}" "$@"
  done
}
for data in mnist digits; do
  dev "$data-hosts" "$data" --methods ER ER-ACE --columns Clean 40%
done
both plain "${kept[@]}"
both noise "${kept[@]}" --set select.strength=noise
both unit-mass
both noise-unit-mass --set select.strength=noise
both balanced "${kept[@]}" --set select.votes=balanced
both every-16 "${kept[@]}" --set every=16
for strength in 0.25 0.4 0.6; do
  dev "mnist-er-ace-strength-$strength" mnist --methods ER-ACE --columns 40% --set "host.strength=$strength"
done
for strength in 1.5 2.5; do
  dev "mnist-er-strength-$strength" mnist --methods ER --columns 40% --set "host.strength=$strength"
done
