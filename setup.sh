#!/bin/sh
# Create .venv and install BERTVision into it, with the exact versions of constraints.txt:  sh setup.sh demo | dev
# Without an NVIDIA GPU, Linux gets PyTorch's CPU build: PyPI's build brings about 2.5 GB of CUDA libraries.
set -eu
extra=$1
python=${PYTHON:-python3}
cpu_builds=https://download.pytorch.org/whl/cpu

stop() {
    echo "error: $*" >&2
    exit 1
}

pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@"
}

has_no_gpu() {
    [ "$(uname -sm)" = "Linux x86_64" ] && ! nvidia-smi -L > /dev/null 2>&1
}

create_venv() {
    command -v "$python" > /dev/null \
        || stop "'$python' was not found. Install Python 3.11 to 3.14, or name yours: make demo PYTHON=python3.12"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    case $version in
        3.11 | 3.12 | 3.13 | 3.14) ;;
        *) stop "BERTVision needs Python 3.11 to 3.14; '$python' is $version. Name another one: make demo PYTHON=python3.12" ;;
    esac
    "$python" -m venv --clear .venv \
        || stop "'$python' can't create a virtual environment. On Debian and Ubuntu: apt install python$version-venv"
}

# Missing, interrupted, or its Python is gone. Otherwise .venv is used with the Python it was created with.
.venv/bin/python -m pip --version > /dev/null 2>&1 || create_venv

if [ "$extra" = demo ]; then
    echo "Setting up .venv: a minute or two, depending on your network. Everything after this works offline."
else
    echo "Adding the packages that the tests and the other extras need."
fi
if has_no_gpu && ! .venv/bin/python -c 'import torch' > /dev/null 2>&1; then
    echo "  No NVIDIA GPU found: installing PyTorch's CPU build."
    pip_install --no-deps --retries 1 --timeout 15 --index-url "$cpu_builds" torch 2> .venv/torch.log \
        || echo "  The CPU build could not be downloaded (.venv/torch.log says why). Taking PyPI's build instead: about 3 GB."
fi
echo "  Installing BERTVision with the extra '$extra'."
runtime=
if [ "$extra" = dev ]; then runtime="--editable ./runtime"; fi
# shellcheck disable=SC2086  # one option with its value, or nothing
pip_install --editable ".[$extra]" $runtime || stop "the packages could not be installed (see above). Run the same command again."
