#!/usr/bin/env bash
# Download the dataset and models on a machine with internet, for jobs without it. From the root of the repository:
#
#   utils/slurm/prefetch.sh data Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-32B-Instruct facebook/contriever-msmarco
#
# The first word is the dataset's folder. DATASETS="LaMP-3:user LaMP-4:user" downloads these tasks and settings into it
# instead of LaMP-QA. Models go to Hugging Face's cache (set HF_HOME to move it), which the nodes must be able to read.
# Cached files are not downloaded again; a model that is a folder is skipped. PYTHON is the interpreter (python).
set -euo pipefail
if [ $# = 0 ]; then
    echo "usage: utils/slurm/prefetch.sh FOLDER [MODEL...]" >&2
    exit 2
fi
PYTHON=${PYTHON:-python}

fetch() { # MODEL PATTERN...: download files by these patterns, and print their folder
    local model=$1 pattern include=()
    shift
    for pattern in "$@"; do
        include+=(--include "$pattern")
    done
    "$PYTHON" -m huggingface_hub.cli.hf download "$model" "${include[@]}" --quiet
}

for dataset in ${DATASETS:-}; do
    "$PYTHON" utils/download_datasets.py --dataset "${dataset%:*}" --setting "${dataset#*:}" --output_dir "$1"
done
[ -n "${DATASETS:-}" ] || "$PYTHON" utils/download_datasets.py --dataset_save_directory "$1"
shift
for model in "$@"; do
    if [ -d "$model" ]; then
        echo "$model: a folder, skipped"
        continue
    fi
    folder=$(fetch "$model" "*.safetensors" "*.json" "tokenizer*" "vocab*" "merges.txt" "*.jinja")
    if ! ls "$folder"/*.safetensors >/dev/null 2>&1; then
        folder=$(fetch "$model" "pytorch_model*.bin") # an older model, such as Contriever
    fi
    echo "$model: in $folder"
done
