#!/usr/bin/env bash
# The runs behind the accuracies of docs/performance-economy.md: bash results/economy/economy.sh [WORKERS] [NAME]
# Evaluation seeds: the numbers of the schedule were chosen on development seeds.
set -eu
workers=${1:-2}
only=${2:-}
sweep() { sphere sweep "$@" --workers "$workers" --quiet --out runs/economy; }
economical() {  # NAME TREATED TABLE [OPTIONS]
  local name=$1 treated=$2; shift 2
  sweep "$@" --methods "$treated" --set schedule=economical --save "results/economy/$name.json"
}
study() {  # NAME TREATED TABLE [OPTIONS]: ER and full scoring, then the economical schedule, on the same seeds
  local name=$1 treated=$2; shift 2
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  sweep "$@" --methods ER "$treated" --save "results/economy/$name.json"
  economical "$name-economical" "$treated" "$@"
  # Where training passes stand for forwards, and what if they did not; others have batch norm or few memories.
  [ "$name" != mnist ] || economical "$name-forwards" "$treated" "$@" --set reuse=0
}
study mnist "ER + calibrated" mnist --columns 40% --seeds 20
study instruct SPHERE instruct-generated --seeds 10
study mnist-resnet "ER + calibrated" mnist --columns 40% --seeds 10 --set network=resnet18 --set width=8 --set limit=10000 --set tail_limit=1000
study cifar10-small "ER + calibrated" mnist --columns 40% --seeds 10 --preset cifar10-small --set tail_limit=1000
