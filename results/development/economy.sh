#!/usr/bin/env bash
# The runs behind the accuracies of docs/performance-economy.md: bash results/development/economy.sh [WORKERS] [NAME]
set -eu
workers=${1:-2}
only=${2:-}
pair() {  # NAME TREATED TABLE [OPTIONS]: ER and full scoring, then the economical schedule, on the same seeds
  name=$1; treated=$2; shift 2
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  sweep() { sphere sweep "$@" --development --skip 500 --workers "$workers" --quiet --out runs/economy; }
  sweep "$@" --methods ER "$treated" --save "results/development/economy-$name.json"
  sweep "$@" --methods "$treated" --set schedule=economical \
    --save "results/development/economy-$name-economical.json"
}
pair mnist "ER + calibrated" mnist --columns 40% --seeds 20  # the shortest interval was chosen on the first ten
pair cifar10-small "ER + calibrated" mnist --columns 40% --seeds 10 --preset cifar10-small --set tail_limit=1000
pair instruct SPHERE instruct-generated --seeds 10
