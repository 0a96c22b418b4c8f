#!/usr/bin/env bash
# The tools that benchmarks compare with, each in an environment of its own: benchmarks/peers.sh [FOLDER, else .peers]
# Megatron-LM's scripts need its source besides: git clone https://github.com/NVIDIA/Megatron-LM FOLDER/Megatron-LM
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.peers}
python=${PYTHON:-python3}

environment() { # name, packages...
  local venv=$folder/$1
  [ -e "$venv/installed" ] && return
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --upgrade pip
  "$venv/bin/pip" install --quiet "${@:2}"
  touch "$venv/installed"
}

environment datatrove "datatrove[processing,io]==0.10.1" spacy tokenizers
environment tokenizers tokenizers sentencepiece orjson gigatoken numpy awkward
if [ ! -e "$folder/triton/installed" ]; then # Megatron-LM's scripts import it; the rest they find in our environment
  "$python" -m pip install --quiet --no-deps --target "$folder/triton" triton
  touch "$folder/triton/installed"
fi
echo "peers are in $folder"
