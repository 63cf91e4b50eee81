# One image for all processes; docker-compose.yml says which one runs.
# Python 3.11.16. To move on: docker buildx imagetools inspect python:3.11-slim.
ARG PYTHON_IMAGE=python:3.11-slim@sha256:e41613d42d4891e4930f79523f93f81bbc7632584ec65e36ab055f41a800b41e
FROM ${PYTHON_IMAGE}
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 DJANGO_SETTINGS_MODULE=blazr_site.settings
COPY pyproject.toml requirements.lock requirements-torch.lock README.md ./
COPY blazr_site blazr_site
COPY inference inference
COPY models_registry models_registry
COPY templates templates
COPY manage.py .
# PyPI's torch is built for CUDA 13.0. For processors alone: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu.
# A build for another CUDA version is refused until requirements-torch.lock has its hash, which pip prints.
ARG TORCH_INDEX=
# Editable: the templates lie beside the packages.
RUN pip install --no-deps --require-hashes -r requirements.lock \
    && pip install --no-deps --require-hashes ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r requirements-torch.lock \
    && pip install --no-build-isolation -e . \
    && useradd --create-home blazr && mkdir /data && chown blazr /data
USER blazr
VOLUME /data
