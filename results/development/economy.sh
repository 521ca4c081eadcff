#!/usr/bin/env bash
# The runs behind the accuracies of docs/performance-economy.md: bash results/development/economy.sh [WORKERS] [NAME]
set -eu
workers=${1:-2}
only=${2:-}
sweep() { sphere sweep "$@" --development --skip 500 --workers "$workers" --quiet --out runs/economy; }
economical() {  # NAME TREATED TABLE [OPTIONS]
  name=$1; treated=$2; shift 2
  sweep "$@" --methods "$treated" --set schedule=economical --save "results/development/economy-$name.json"
}
study() {  # NAME TREATED TABLE [OPTIONS]: ER and full scoring, then what costs less, on the same seeds
  name=$1; treated=$2; shift 2
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  sweep "$@" --methods ER "$treated" --save "results/development/economy-$name.json"
  economical "$name-economical" "$treated" "$@" --set reuse=0
  economical "$name-reusing" "$treated" "$@" --set reuse=8
}
study mnist "ER + calibrated" mnist --columns 40% --seeds 20  # the shortest interval was chosen on the first ten
study instruct SPHERE instruct-generated --seeds 10
study mnist-resnet "ER + calibrated" mnist --columns 40% --seeds 10 --set network=resnet18 --set width=8 --set limit=20000 --set tail_limit=1000
study cifar10-small "ER + calibrated" mnist --columns 40% --seeds 10 --preset cifar10-small --set tail_limit=1000
if [ -z "$only" ] || [ "$only" = intervals ]; then  # how long may they grow?
  for longest in 64 128; do
    economical "mnist-longest-$longest" "ER + calibrated" mnist --columns 40% --seeds 20 --set reuse=8 --set longest=$longest
  done
fi
