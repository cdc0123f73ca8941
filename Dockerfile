# Builds from a Python image and package indexes alone. pip reads PIP_INDEX_URL and PIP_EXTRA_INDEX_URL: pass
# `--build-arg PIP_EXTRA_INDEX_URL=…` to take torch from an index of CPU builds, which is much smaller.
FROM python:3.12-slim AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /build
# torch comes first and in a layer of its own: it is large, and changes less often than the rest.
COPY constraints.txt ./
RUN python -m venv /opt/driftproof \
    && /opt/driftproof/bin/pip install --no-cache-dir --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/driftproof/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve]'

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /state driftproof
COPY --from=build /opt/driftproof /opt/driftproof
ENV PATH=/opt/driftproof/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /state
VOLUME /state
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# Arguments of `docker run` replace CMD: give the model, and the state if it is to be kept.
ENTRYPOINT ["driftproof", "serve", "--host", "0.0.0.0"]
CMD ["--help"]
