# etcd from Debian's packages, where its official image can't be pulled: ETCD_IMAGE=penstock-etcd
ARG BASE_IMAGE=debian:bookworm-slim
FROM ${BASE_IMAGE}
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends etcd-server etcd-client \
    && rm -rf /var/lib/apt/lists/* /var/lib/etcd/* \
    && install -d -m 0700 -o 10001 -g 10001 /etcd-data
USER 10001:10001
CMD ["etcd"]
