#!/usr/bin/env bash
# The runs behind the accuracies of docs/performance-economy.md: bash results/development/economy.sh [WORKERS] [NAME]
set -eu
workers=${1:-2}
only=${2:-}
pair() {  # NAME SEEDS [OPTIONS]: ER and full scoring, then the economical schedule, on the same seeds
  name=$1; seeds=$2; shift 2
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  sweep() { sphere sweep mnist --development --skip 500 --seeds "$seeds" --columns 40% --workers "$workers" --quiet \
    --out runs/economy "$@"; }
  sweep "$@" --methods ER "ER + calibrated" --save "results/development/economy-$name.json"
  sweep "$@" --methods "ER + calibrated" --set schedule=economical \
    --save "results/development/economy-$name-economical.json"
}
pair mnist 20  # the shortest interval was chosen on the first ten
pair cifar10-small 10 --preset cifar10-small --set tail_limit=1000
