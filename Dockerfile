# syntax=docker/dockerfile:1
# With CUDA: docker build -t dxn .
# For CPUs:  docker build -t dxn:cpu --build-arg INDEX=https://download.pytorch.org/whl/cpu .
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# The wheels of PyPI contain the libraries of CUDA, so the machine needs only the driver and NVIDIA's
# container toolkit. An index of PyTorch has other builds of the same versions: pip prefers them.
ARG INDEX=""
ARG EXTRAS="serve,trackers"

WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE hatch_build.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install "uv>=0.9" \
    && uv export --quiet --locked --all-extras --no-dev --no-emit-project --no-hashes --output-file locked.txt
COPY dxn dxn
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint locked.txt ${INDEX:+--extra-index-url "$INDEX"} ".[$EXTRAS]"

RUN useradd --create-home --uid 1000 dxn
# Not /src, so that the installed package is used. With the file that this command writes, a mistyped
# option is answered without importing torch.
WORKDIR /home/dxn
RUN python -m dxn.config.signatures && install --directory --owner=1000 data
# Runs are written here, so mount a disk that outlives the container.
WORKDIR /home/dxn/data
USER 1000
CMD ["dxn", "--help"]
