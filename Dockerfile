# One image for all processes; docker-compose.yml says which one runs.
# A tag can move. To pin the image: docker buildx imagetools inspect python:3.11-slim, then
# --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:…
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 DJANGO_SETTINGS_MODULE=blazr_site.settings
COPY pyproject.toml requirements.lock constraints.txt README.md ./
COPY blazr_site blazr_site
COPY inference inference
COPY models_registry models_registry
COPY templates templates
COPY manage.py .
# Editable: the templates lie beside the packages. For another build of torch (CPU only, another CUDA version), give its
# package index: --build-arg TORCH_INDEX=URL
ARG TORCH_INDEX=
RUN pip install --no-deps --require-hashes -r requirements.lock \
    && pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt --no-build-isolation -e . \
    && useradd --create-home blazr && mkdir /data && chown blazr /data
USER blazr
VOLUME /data
