#!/usr/bin/env bash
# The runs behind results/development/calibration.md: bash results/development/calibration.sh [WORKERS]
set -eu
workers=${1:-2}
dev() {  # FILE TABLE [OPTIONS]: some rows of a table on three development seeds
  file=$1; table=$2; shift 2
  sphere sweep "$table" --development --seeds 3 --workers "$workers" --quiet --out runs/development \
    --save "results/development/$file.json" "$@"
}
both() {  # NAME [OPTIONS]: hosts with a calibrated selection on MNIST and on digits
  name=$1; shift
  for data in mnist digits; do
    dev "$data-$name" "$data-calibrated" --methods "ER + calibrated" "ER-ACE + calibrated" --columns Clean 40% "$@"
  done
}
for data in mnist digits; do
  dev "$data-hosts" "$data-calibrated" --methods ER ER-ACE --columns Clean 40%
done
both plain --set 'calibration={"unit_mass": false}'
both noise --set 'calibration={"unit_mass": false, "strength": "noise"}'
both unit-mass
both noise-unit-mass --set 'calibration={"strength": "noise"}'
for strength in 0.25 0.4 0.6; do
  dev "mnist-er-ace-strength-$strength" mnist-calibrated --methods ER-ACE --columns 40% \
    --set "options={\"strength\": $strength}"
done
for strength in 1.5 2.5; do
  dev "mnist-er-strength-$strength" mnist-calibrated --methods ER --columns 40% --set "options={\"strength\": $strength}"
done
both balanced --set 'calibration={"unit_mass": false, "votes": "balanced"}'
both every-16 --set 'calibration={"unit_mass": false}' --set every=16
both backing-alone --set 'calibration={"unit_mass": false, "alpha": 0}'
both kernel-alone --set 'calibration={"unit_mass": false, "agreement": 0}'
