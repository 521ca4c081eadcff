#!/usr/bin/env bash
# The runs behind the second part of results/development/calibration.md: bash results/development/refine.sh [WORKERS]
set -eu
workers=${1:-2}
dev() {  # FILE TABLE SEEDS [OPTIONS]: some rows of a table on fresh development seeds
  file=$1; table=$2; seeds=$3; shift 3
  sphere sweep "$table" --development --skip 30 --seeds "$seeds" --workers "$workers" --quiet --out runs/development \
    --save "results/development/$file.json" "$@"
}
all() {  # NAME COLUMN METHODS... -- [OPTIONS]: on three problems
  name=$1; column=$2; shift 2
  dev "refine-mnist-$name" mnist 6 --columns "$column" "$@"
  dev "refine-digits-$name" digits 20 --columns "$column" "$@"
  dev "refine-frozen-$name" cifar10-frozen 4 --columns "$column" "$@"
}
calibrated() {  # NAME COLUMN SETTINGS [OPTIONS]
  name=$1; column=$2; settings=$3; shift 3
  all "$name" "$column" --methods "ER + calibrated" "ER-ACE + calibrated" --set "calibration={$settings}" "$@"
}
first() {
  all hosts 40% --methods ER ER-ACE
  calibrated base 40% ""
  calibrated quantile 40% '"rule": "quantile"'
  calibrated alpha-0.25 40% '"alpha": 0.25'
  calibrated backing-alone 40% '"alpha": 0.0'
  calibrated balanced 40% '"votes": "balanced"'
  calibrated neighbors-4 40% '"neighbors": 4, "far": 20'
  calibrated neighbors-16 40% '"neighbors": 16, "far": 80'
  calibrated agreement-1 40% '"agreement": 1.0'
  calibrated every-16 40% "" --set every=16
  calibrated leave-one-out 40% '"leave_one_out": true'
  calibrated kernel-alone 40% '"agreement": 0.0'
}
first
