# `hmc serve` on NVIDIA GPUs, from the wheel and the tested versions:
#   make release && docker build -f deploy/docker/cuda.Dockerfile -t hmc:cuda .
# CUDA's libraries and cuDNN come as Python packages, the newest that ONNX Runtime takes. The driver comes from the host, by the NVIDIA Container Toolkit.
# BASE is any image with Python 3.11 or later as `python3`, with its module venv, and with a shell.
ARG BASE=docker.io/library/python:3.13-slim-bookworm

FROM ${BASE} AS build
COPY constraints.txt dist/headmask-*[0-9]-py3-none-any.whl /build/
WORKDIR /build
RUN python3 -m venv /opt/hmc \
 && /opt/hmc/bin/pip install --no-cache-dir -c constraints.txt "$(ls ./headmask-*.whl)[tracing]" 'onnxruntime-gpu[cuda,cudnn]' \
 && /opt/hmc/bin/pip uninstall --yes pip \
 && install -d -o 10001 -g 10001 /cache

FROM ${BASE}
COPY --from=build /opt/hmc /opt/hmc
COPY --from=build --chown=10001:10001 /cache /cache
ENV PATH=/opt/hmc/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    HMC_HOST=0.0.0.0 \
    HMC_PORT=50051 \
    HMC_METRICS_PORT=9090 \
    HMC_CACHE=/cache \
    HMC_DEVICE=cuda
USER 10001:10001
VOLUME ["/cache"]
EXPOSE 50051 9090
# By a shell, because Docker knows only the exit statuses 0 and 1, and `hmc` has 75 for a server that is not ready.
# hadolint ignore=DL3025
HEALTHCHECK --start-period=120s --interval=15s --timeout=10s CMD hmc health --server "localhost:$HMC_PORT" --timeout 5 || exit 1
ENTRYPOINT ["hmc"]
CMD ["serve", "/bundle"]
