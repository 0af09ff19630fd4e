"""The table ``[spark]``, its options and its environment: where a session runs, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment
from rmq_store.settings.settings import load_settings, read_settings
from rmq_store.settings.spark_settings import SparkSettings, conf_of, is_local_master, spark_target, submit_options

GROUP = '[[group]]\nname = "orders"\nlistener = "shop:Orders"\n[[group.subscription]]\ntopic = "T"\n'
NOTHING = Environment.read({})


def spark_of(table: str) -> SparkSettings:
    return load_settings(f"{table}\n{GROUP}", "test").spark


def test_without_a_table_spark_runs_in_this_process() -> None:
    assert spark_of("") == SparkSettings() == spark_target(SparkSettings(), SparkSettings(), NOTHING)
    assert SparkSettings().ships is None


def test_settings_of_spark_are_written_as_toml_likes() -> None:
    settings = spark_of(
        '[spark]\nmaster = "spark://here:7077"\n[spark.conf]\nspark.cores.max = 32\nspark.rmq.ship = false\n'
        '"spark.speculation" = true\n"spark.speculation.interval" = "1s"'
    )
    assert settings.master == "spark://here:7077"
    assert settings.conf == {
        "spark.cores.max": "32",
        "spark.rmq.ship": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
    }
    assert settings.ships is False


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('spark = "yarn"', "spark must be a table"),
        ('[spark]\nmastr = "yarn"', "unknown key 'mastr', did you mean 'master'?"),
        ("[spark]\nmaster = 1", "master must be text"),
        ('[spark]\nmaster = "here:7077"', "'here:7077' is not a master: expected local"),
        ('[spark]\nmaster = "sc://here:15002/;token=secret"', "sc://here:15002 is a Spark Connect server"),
        ('[spark]\npy_files = "models.py"', "py_files must be a list of paths"),
        ("[spark]\nconf = 3", "conf must be a table"),
        ('[spark.conf]\ncores = "2"', "'cores' is not a Spark setting"),
        ('[spark.conf]\nspark.jars = ["a"]', "spark.jars must be text"),
        ('[spark.conf]\nspark.master = "yarn"', "spark.master is not set here"),
        ('[spark.conf]\nspark.rmq.shipp = "true"', "unknown setting spark.rmq.shipp, did you mean 'spark.rmq.ship'?"),
        ('[spark.conf]\nspark.rmq.ship = "yes"', "spark.rmq.ship must be true or false"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_expected(table: str, says: str) -> None:
    with pytest.raises(WrongUse, match=says) as refusal:
        spark_of(table)
    assert "secret" not in str(refusal.value)


def test_an_option_comes_before_the_environment_and_that_before_the_file() -> None:
    file = SparkSettings(master="yarn", conf={"spark.a": "file", "spark.b": "file"}, py_files=("a.py",))
    option = SparkSettings(master="local[2]", conf={"spark.b": "option"}, py_files=("b.py",))
    environment = Environment.read({"RMQ_SPARK_MASTER": "spark://here:7077"})
    assert spark_target(file, SparkSettings(), NOTHING).master == "yarn"
    assert spark_target(file, SparkSettings(), environment).master == "spark://here:7077"
    target = spark_target(file, option, environment)
    assert target.master == "local[2]"
    assert target.conf == {"spark.a": "file", "spark.b": "option"}
    assert target.py_files == ("a.py", "b.py")


def test_a_connect_server_comes_before_the_master_of_the_file_and_beside_no_other() -> None:
    environment = Environment.read({"SPARK_REMOTE": "sc://here"})
    target = spark_target(SparkSettings(master="yarn"), SparkSettings(), environment)
    assert (target.remote, target.master) == ("sc://here", None)
    file = SparkSettings(conf={"spark.executor.memory": "4g", "spark.rmq.ship": "true"})
    target = spark_target(file, SparkSettings(conf={"spark.sql.ansi.enabled": "true"}), environment)
    assert target.conf == {"spark.rmq.ship": "true", "spark.sql.ansi.enabled": "true"}, (
        "the server has its own settings"
    )
    with pytest.raises(WrongUse, match="--master and SPARK_REMOTE exclude each other"):
        spark_target(SparkSettings(), SparkSettings(master="yarn"), environment)
    both = Environment.read({"SPARK_REMOTE": "sc://here", "RMQ_SPARK_MASTER": "yarn"})
    with pytest.raises(WrongUse, match="RMQ_SPARK_MASTER and SPARK_REMOTE exclude each other"):
        spark_target(SparkSettings(), SparkSettings(), both)


def test_spark_submit_starts_spark_on_the_master_with_the_settings_of_the_file() -> None:
    file = SparkSettings(master="yarn", conf={"spark.a": "file"}, py_files=("a.py",))
    target = spark_target(file, SparkSettings(), Environment.read({"RMQ_SPARK_SUBMIT": "spark-submit --queue etl"}))
    assert target == replace(file, submit=("--queue", "etl"))
    both = Environment.read({"SPARK_REMOTE": "sc://here", "RMQ_SPARK_SUBMIT": "spark-submit"})
    with pytest.raises(WrongUse, match="RMQ_SPARK_SUBMIT and SPARK_REMOTE exclude each other"):
        spark_target(SparkSettings(), SparkSettings(), both)


def test_the_options_of_spark_submit_are_words_of_a_shell() -> None:
    assert submit_options("spark-submit") == ()
    text = "spark-submit -v --queue=etl --principal 'a b' --conf spark.a='b c' --verbose --jars a.jar,b.jar"
    assert submit_options(text) == (
        "-v", "--queue=etl", "--principal", "a b", "--conf", "spark.a=b c", "--verbose", "--jars", "a.jar,b.jar"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" ", "must begin with spark-submit, it begins with ''"),
        ("/tmp/spark-submit", "it begins with '/tmp/spark-submit'"),
        ("spark-submit --conf 'spark.a", "cannot be read: No closing quotation"),
        ("spark-submit --queue", "--queue of spark-submit has no value"),
        ("spark-submit --queue etl mine.py", "gets only options here, 'mine.py' is none"),
        ("spark-submit --master=yarn", "gets no --master here: it has a place of its own"),
        ("spark-submit --deploy-mode cluster", "gets no --deploy-mode here: the driver runs beside the task"),
        ("spark-submit --conf spark.submit.deployMode=cluster", "the driver runs beside its caller"),
        ("spark-submit -c spark.master=yarn", "it has a place of its own"),
        ("spark-submit --conf a=b", "'a' is not a Spark setting"),
    ],
)
def test_what_spark_submit_does_not_get_is_refused(text: str, says: str) -> None:
    with pytest.raises(WrongUse, match=re.escape(says)):
        submit_options(text)


def test_a_setting_of_an_option_is_key_and_value() -> None:
    assert conf_of(["spark.a=1", "spark.b=x=y", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}
    with pytest.raises(WrongUse, match=r"'spark.a' is not a Spark setting: write KEY=VALUE"):
        conf_of(["spark.a"])


def test_a_relative_path_is_one_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "consumers.toml").write_text('[spark]\npy_files = ["models.py", "/opt/models.zip"]\n' + GROUP)
    files = read_settings(tmp_path / "consumers.toml").spark.py_files
    assert files == (str(tmp_path / "models.py"), "/opt/models.zip")


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://h:7077", False),
        ("k8s://https://h:6443", False),
        ("yarn", False),
    ],
)
def test_only_local_runs_on_this_host(master: str, is_local: bool) -> None:
    assert is_local_master(master) == is_local
    assert spark_of(f'[spark]\nmaster = "{master}"').master == master
