# A server with its bundle inside, so that an image is a version of the model:
#   docker build -f deploy/docker/bundle.Dockerfile --build-arg BASE=hmc:cpu -t hmc:en-de-1 BUNDLE
ARG BASE=hmc:cpu
FROM ${BASE}
COPY --chown=10001:10001 . /bundle
