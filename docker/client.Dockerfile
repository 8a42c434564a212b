# The client and its command line; needs neither torch nor a GPU.
# From the top of the repository: docker build -f docker/client.Dockerfile -t worldstream-client .
ARG PYTHON_TAG=3.12-slim

FROM python:${PYTHON_TAG} AS packages
ARG PIP_ARGS=
RUN python -m venv /opt/worldstream
COPY pyproject.toml constraints.txt LICENSE /source/
COPY client /source/client
RUN set -f && /opt/worldstream/bin/pip install --no-cache-dir -c /source/constraints.txt $PIP_ARGS /source

FROM python:${PYTHON_TAG}
COPY --from=packages /opt/worldstream /opt/worldstream
RUN useradd --uid 1000 --no-create-home worldstream \
    && install -d -o 1000 -g 1000 /work
ENV PATH=/opt/worldstream/bin:$PATH
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["worldstream"]
CMD ["--help"]
