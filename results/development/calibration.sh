#!/usr/bin/env bash
# The runs behind results/development/calibration.md: bash results/development/calibration.sh [WORKERS]
set -eu
workers=${1:-2}
dev() {  # FILE TABLE [OPTIONS]: some rows of a table on four development seeds
  file=$1; table=$2; shift 2
  sphere sweep "$table" --development --seeds 4 --workers "$workers" --quiet --out runs/development \
    --save "results/development/$file.json" "$@"
}
noisy_rows=("ER + calibrated" "ER-ACE + calibrated")

dev mnist-hosts mnist-calibrated --methods ER ER-ACE "ER + SPHERE" "ER-ACE + SPHERE" --columns Clean 40%
dev digits-hosts digits-calibrated --methods ER ER-ACE --columns Clean 40%
candidate() {  # NAME [OPTIONS]
  name=$1; shift
  dev "mnist-$name" mnist-calibrated --methods "${noisy_rows[@]}" --columns Clean 40% "$@"
  dev "digits-$name" digits-calibrated --methods "${noisy_rows[@]}" --columns Clean 40% "$@"
}
candidate plain
candidate noise --set 'calibration={"strength": "noise"}'
candidate noise-unit-mass --set 'calibration={"strength": "noise"}' --set unit_mass=true
candidate balanced --set 'calibration={"votes": "balanced"}'
candidate balanced-noise --set 'calibration={"votes": "balanced", "strength": "noise"}'
candidate unit-mass --set unit_mass=true
candidate leave-one-out --set 'calibration={"leave_one_out": true}'
candidate local --set 'calibration={"neighbors": 5, "far": 25}'
candidate backing-alone --set 'calibration={"alpha": 0}'
candidate kernel-alone --set 'calibration={"agreement": 0}'
candidate every-16 --set every=16
for strength in 0.25 0.4 0.6 0.75 1.5 2.5 4; do
  dev "mnist-strength-$strength" mnist-calibrated --methods ER ER-ACE --columns 40% \
    --set "options={\"strength\": $strength}"
done
