# One image for all processes; docker-compose.yml says which one runs.
FROM python:3.11-slim
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 DJANGO_SETTINGS_MODULE=blazr_site.settings
COPY pyproject.toml constraints.txt README.md ./
COPY blazr_site blazr_site
COPY inference inference
COPY models_registry models_registry
COPY templates templates
COPY manage.py .
# Editable: the templates lie beside the packages. For another build of torch (CPU only, another CUDA version), give its
# package index: --build-arg TORCH_INDEX=URL
ARG TORCH_INDEX=
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt -e . \
    && useradd --create-home blazr && mkdir /data && chown blazr /data
USER blazr
VOLUME /data
