# Images of the farm. Targets: core (coordinator, migrations, CPU worker), gpu (CUDA worker), build (builder of CUTLASS
# and Triton kernels), trainer, web (pages and API), mlflow (the registry, without the farm's code).
# Pin the base by digest: --build-arg PYTHON_IMAGE=python:3.12-slim@sha256:...
ARG PYTHON_IMAGE=python:3.12-slim
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_SYSTEM_CERTS=1 UV_NO_CACHE=1
RUN useradd --create-home --uid 10001 farm && mkdir /data && chown farm /data
WORKDIR /opt/gemm-farm
COPY requirements requirements
RUN pip install --require-hashes -r requirements/tools.txt

# The wheel that every target installs.
FROM base AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY deploy deploy
COPY examples examples
COPY migrations migrations
COPY trainer trainer
COPY workers workers
COPY farm farm
RUN python -m hatchling build --target wheel --directory /dist

# Each target: the locked packages first, so that a change of the farm's code does not install them again.
FROM base AS core
RUN uv pip install --system --require-hashes --compile-bytecode -r requirements/worker.txt
COPY --from=wheel /dist /dist
RUN uv pip install --system --no-deps --compile-bytecode /dist/*.whl
USER farm
ENV FARM_HOME=/data

FROM base AS gpu
ARG CUDA_EXTRA=cuda13
RUN uv pip install --system --require-hashes --compile-bytecode -r requirements/worker-${CUDA_EXTRA}.txt
COPY --from=wheel /dist /dist
RUN uv pip install --system --no-deps --compile-bytecode /dist/*.whl
USER farm
ENV FARM_HOME=/data NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM base AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN uv pip install --system --require-hashes --compile-bytecode -r requirements/worker-build.txt && \
    uv pip install --system --require-hashes -r requirements/worker-triton.txt
COPY --from=wheel /dist /dist
RUN uv pip install --system --no-deps --compile-bytecode /dist/*.whl
USER farm
ENV FARM_HOME=/data

FROM base AS trainer
RUN uv pip install --system --require-hashes --compile-bytecode -r requirements/trainer.txt
COPY --from=wheel /dist /dist
RUN uv pip install --system --no-deps --compile-bytecode /dist/*.whl
USER farm
ENV FARM_HOME=/data

FROM base AS web
RUN uv pip install --system --require-hashes --compile-bytecode -r requirements/web.txt
COPY --from=wheel /dist /dist
RUN uv pip install --system --no-deps --compile-bytecode /dist/*.whl
USER farm
ENV FARM_HOME=/data
EXPOSE 8000

FROM base AS mlflow
RUN uv pip install --system --require-hashes --compile-bytecode -r requirements/trainer.txt
USER farm
EXPOSE 5000
