# Prometheus from Debian's packages, where its official image can't be pulled: PROMETHEUS_IMAGE=penstock-prometheus
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65534 -g 65534 /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]
