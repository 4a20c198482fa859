#!/usr/bin/env bash
# Fetch the dataset and models on a machine with internet, for jobs that have none. From the root of the repository:
#
#   utils/slurm/prefetch.sh data Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-32B-Instruct facebook/contriever-msmarco
#
# The first word is the dataset's folder. DATASETS="LaMP-3:user LaMP-4:user" fetches these tasks and settings into it
# instead of LaMP-QA. Models go to Hugging Face's cache (HF_HOME moves it), which the nodes must see
# too. What is there is not fetched again; a model that is a folder is left alone. Also: PYTHON (python).
set -euo pipefail
if [ $# = 0 ]; then
    echo "usage: utils/slurm/prefetch.sh FOLDER [MODEL...]" >&2
    exit 2
fi
PYTHON=${PYTHON:-python}

fetch() { # MODEL PATTERN...: the files of these names; prints their folder
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
        echo "$model: a folder, left alone"
        continue
    fi
    folder=$(fetch "$model" "*.safetensors" "*.json" "tokenizer*" "vocab*" "merges.txt" "*.jinja")
    if ! ls "$folder"/*.safetensors >/dev/null 2>&1; then
        folder=$(fetch "$model" "pytorch_model*.bin") # an older model, as Contriever is
    fi
    echo "$model: in $folder"
done
