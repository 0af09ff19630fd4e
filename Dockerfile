# One image for Airflow's services and for the Spark Connect server: the set of requirements.txt, Java, and the jars.
# Spark SQL over s3:// roots needs 690 MB more: docker build --build-arg JAR_GROUPS="delta s3a".
FROM python:3.11-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 50000 rmq

WORKDIR /opt/rmq
COPY requirements.txt ./
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements.txt

# The jars change less often than the code: fetch them before it comes.
COPY rmq_store/__init__.py rmq_store/errors.py rmq_store/
COPY rmq_store/settings/__init__.py rmq_store/settings/environment.py rmq_store/settings/
COPY spark_jobs/__init__.py spark_jobs/java.py spark_jobs/jars.py spark_jobs/jars.lock spark_jobs/
ARG JAR_GROUPS=delta
RUN for group in $JAR_GROUPS; do python -m spark_jobs.jars --group "$group" || exit 1; done

COPY pyproject.toml LICENSE README.md ./
COPY rmq_store rmq_store
COPY spark_jobs spark_jobs
COPY dags dags
COPY plugins plugins
COPY demo demo
COPY scripts/compose_init.py scripts/
RUN pip install --no-cache-dir --no-build-isolation --no-deps -e . && pip check \
 && install -d -o rmq -g rmq /opt/rmq/airflow /opt/rmq/airflow/logs /opt/rmq/state

ENV AIRFLOW_HOME=/opt/rmq/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/rmq/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/rmq/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False
USER rmq
ENTRYPOINT ["tini", "--"]
CMD ["rmq", "--help"]
