"""The commands, in local and threads mode, on final features and on samples."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from sklearn.metrics import log_loss, roc_auc_score

from apps.ctr.cli import main
from apps.ctr.command import cluster_config, named_after, split_overrides
from apps.ctr.job import read_train_job
from feature_extract.extract import extract
from pslite.config import JobConfig, RunConfig
from van.errors import ConfigError

MODEL = """
[sparse_dict]
emb_dim = 4
[net]
model = fnn
layers = fc:8,tanh:-1,fc:1,sigmoid:-1
[optimizer]
optimizer = adagrad
learning_rate = 0.1
[train]
epoch = 2
batch_size = 100
[debug]
interval = 5
"""
FEATURES = """
[raw_sample_schema]
fields = user,clk,age,hist,brand
[id]
id = user,direct
[label]
label = clk,direct
[dense_features_user]
001_age = age,log
[sparse_features_user]
001_user = user,direct
002_hist = hist,group,brand
[sparse_features_ad]
001_brand = brand,direct
[sparse_features_user_ad]
001_hit = brand|hist,hit
"""


def invoke(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def model_ini(tmp_path: Path) -> Path:
    path = tmp_path / "model.ini"
    path.write_text(MODEL)
    return path


@pytest.fixture
def final(tmp_path: Path, generate: Callable[..., Any]) -> Path:
    folder = tmp_path / "features"
    folder.mkdir()
    generate(rows=1500, seed=1).write_parquet(folder / "final_train.parquet")
    generate(rows=333, seed=2).write_parquet(folder / "final_test.parquet")
    return folder


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Users click when the ad's brand is in their history."""
    folder = tmp_path / "samples"
    folder.mkdir()
    rng = np.random.default_rng(5)
    for name, rows in (("train", 800), ("test", 200)):
        lines = []
        for _ in range(rows):
            hist = [f"b{v}" for v in rng.integers(0, 9, rng.integers(0, 4))]
            brand = f"b{rng.integers(0, 9)}"
            click = int(rng.random() < (0.8 if brand in hist else 0.1))
            user, age = rng.integers(0, 50), rng.integers(10, 90)
            lines.append(f"u{user}\t{click}\t{age}\t{','.join(hist)}\t{brand}\n")
        (folder / f"{name}.tsv").write_text("".join(lines))
    (folder / "features.ini").write_text(FEATURES)
    return folder


def metrics(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return found


def test_a_run_leaves_model_figures_and_settings(
    tmp_path: Path, model_ini: Path, final: Path
) -> None:
    run = tmp_path / "run"

    result = invoke(
        "train", "--conf", model_ini, "--data", final, "--out", run, "--set", "train.seed=3"
    )

    found = metrics(run)
    assert "test AUC" in result.output
    assert "epoch 1 batch 5: loss 0." in result.output
    assert (found["mode"], found["workers"], found["train_samples"]) == ("local", 1, 3000)
    assert (found["test_rows"], found["remark"]) == (333, "")
    assert found["test_auc"] > 0.6
    assert set(found["step_seconds"]) == {"data", "pull", "forward", "backward", "push", "wait"}
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 30 // 5
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "conf" / "model.ini").read_text() == MODEL
    assert read_train_job(run).conf.train.seed == 3


@pytest.mark.parametrize("layout", ["parquet", "tsv"])
def test_predictions_and_evaluation_repeat_the_test(
    tmp_path: Path, model_ini: Path, final: Path, generate: Callable[..., Any], layout: str
) -> None:
    run, out, data = tmp_path / "run", tmp_path / "p.txt", final / f"final_test.{layout}"
    made = generate(rows=333, seed=2)
    if layout == "tsv":
        made.write_text(data)
    invoke("train", "--conf", model_ini, "--data", final, "--out", run)

    said = invoke("evaluate", "--run", run, "--data", data).output
    invoke("predict", "--run", run, "--data", data, "--out", out)

    scores = np.array(out.read_text().split(), dtype=np.float32)
    assert len(scores) == 333
    assert f"{metrics(run)['test_auc']:.5f}" in said
    assert metrics(run)["test_auc"] == pytest.approx(roc_auc_score(made.labels, scores), abs=1e-12)
    assert metrics(run)["test_logloss"] == pytest.approx(log_loss(made.labels, scores), rel=1e-6)


def test_samples_are_extracted_and_predicted_with_the_dictionary_of_the_run(
    tmp_path: Path, model_ini: Path, samples: Path
) -> None:
    run, ini = tmp_path / "run", samples / "features.ini"
    invoke("train", "--conf", model_ini, "--features", ini, "--data", samples, "--out", run)

    for data, out in ((samples / "test.tsv", "a"), (run / "features/final_test.parquet", "b")):
        invoke("predict", "--run", run, "--data", data, "--out", tmp_path / out)
    said = invoke("evaluate", "--run", run, "--data", samples / "test.tsv").output

    assert metrics(run)["test_auc"] > 0.7
    assert f"{metrics(run)['test_auc']:.5f}" in said
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()


def test_rows_without_a_label_can_be_predicted_but_not_measured(
    tmp_path: Path, model_ini: Path, samples: Path
) -> None:
    run, bare = tmp_path / "run", tmp_path / "bare.tsv"
    ini = samples / "features.ini"
    invoke("train", "--conf", model_ini, "--features", ini, "--data", samples, "--out", run)
    lines = (samples / "test.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    bare.write_text("".join("\t".join([user, "", *rest]) + "\n" for user, _, *rest in rows))

    for data, out in ((samples / "test.tsv", "a"), (bare, "b")):
        invoke("predict", "--run", run, "--data", data, "--out", tmp_path / out)
    result = invoke("evaluate", "--run", run, "--data", bare, code=2)

    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()
    assert "label nan is neither 0 nor 1" in result.output


def test_features_extracted_before_can_still_predict_samples(
    tmp_path: Path, model_ini: Path, samples: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    ini = samples / "features.ini"
    invoke("train", "--conf", model_ini, "--features", ini, "--data", samples, "--out", first)

    invoke("train", "--conf", model_ini, "--data", first / "features", "--out", second)
    for run in (first, second):
        data, out = samples / "test.tsv", tmp_path / f"{run.name}.txt"
        invoke("predict", "--run", run, "--data", data, "--out", out)

    assert metrics(first)["digest"] == metrics(second)["digest"]
    assert (tmp_path / "first.txt").read_text() == (tmp_path / "second.txt").read_text()


def test_threads_in_sync_mode_give_the_local_model(
    tmp_path: Path, model_ini: Path, final: Path
) -> None:
    for mode in ("local", "threads"):
        options = ["--mode", mode, "--workers", 3, "--sync", "--out", tmp_path / mode]
        invoke("train", "--conf", model_ini, "--data", final, *options)

    local, threads = metrics(tmp_path / "local"), metrics(tmp_path / "threads")
    assert (local["param_sync"], threads["workers"]) == ("sync", 3)
    for figure in ("digest", "test_auc", "test_logloss", "train_logloss"):
        assert local[figure] == threads[figure]


def test_values_travel_compressed_where_the_cluster_ini_says_so(
    tmp_path: Path, model_ini: Path, final: Path
) -> None:
    ini = tmp_path / "cluster.ini"
    ini.write_text("[compression]\nembedding = topk:0.3+fp16\ndense = fp16\n*@pull = fp16\n")
    for name, how in (("plain", []), ("small", ["--cluster", ini])):
        options = ["--mode", "threads", "--workers", 2, *how, "--out", tmp_path / name]
        invoke("train", "--conf", model_ini, "--data", final, *map(str, options))

    plain, small = (metrics(tmp_path / name) for name in ("plain", "small"))
    link = small["compression"]["embedding"]["worker-server"]
    assert "compression" not in plain
    assert link["nbytes"] < 0.3 * link["plain_nbytes"]
    assert "net.model.0.weight" in small["compression"] or len(small["compression"]) > 1
    assert small["test_auc"] == pytest.approx(plain["test_auc"], abs=0.05)
    assert read_train_job(tmp_path / "small").compression.said["dense"] == "fp16"

    options = ["--mode", "local", "--cluster", ini, "--out", tmp_path / "local"]
    invoke("train", "--conf", model_ini, "--data", final, *map(str, options))
    (warning,) = metrics(tmp_path / "local")["warnings"]
    assert "in mode local nothing is sent" in warning


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_failing_worker_ends_the_run_with_its_error(
    tmp_path: Path, model_ini: Path, final: Path, mode: str
) -> None:
    settings = ["--set", "optimizer.optimizer=sgd", "--set", "optimizer.learning_rate=1e30"]

    result = CliRunner(catch_exceptions=False).invoke(
        main,
        [
            *("train", "--conf", str(model_ini), "--data", str(final), "--mode", mode),
            *("--workers", "3", "--sync", "--out", str(tmp_path / "run"), *settings),
        ],
    )

    assert result.exit_code == 2
    assert "pslite-ctr: error: table " in result.output
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--set", "train.epchs=2"], "--set [train] epchs: unknown key; did you mean epoch?"),
        (["--set", "index.kind=hash"], "--set index.kind=hash is for the extraction of samples"),
        (["--set", "trian.epoch=2"], "no section [trian]; did you mean train?"),
        (["--set", "train.epoch=two"], "--set [train] epoch: 'two' is not a whole number"),
        (["--set", "train.epoch=0"], "--set [train] epoch: "),
        (["--set", "net.layers=fc:99999999999,fc:1"], "'fc:99999999999' is too wide"),
        (["--set", "cluster.wrokers=2"], "wrokers: unknown key; did you mean workers?"),
        (["--set", "sparse_dict.initializer=wide"], "[sparse_dict] initializer: 'wide' is none"),
        (["--set", "net.model=fmn"], "--set: [net] model = fmn is unknown; did you mean fnn?"),
        (["--set", "net.layers=fc:2,sigmoid:-1"], "--set: [net] layers: sigmoid gets 2 values"),
    ],
)
def test_wrong_settings_are_one_line(
    tmp_path: Path, model_ini: Path, final: Path, options: list[str], problem: str
) -> None:
    args = ["train", "--conf", model_ini, "--data", final, "--out", tmp_path / "run", *options]
    result = invoke(*args, code=2)

    assert problem in result.output
    assert "Traceback" not in result.output


def test_data_that_cannot_be_used_is_named(
    tmp_path: Path, model_ini: Path, samples: Path, final: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    train = ["train", "--conf", model_ini, "--out", tmp_path / "run"]

    assert "holds neither final_train" in invoke(*train, "--data", empty, code=2).output
    assert "need a feature ini" in invoke(*train, "--data", samples, code=2).output
    invoke(*train, "--data", final)
    predict = ["predict", "--run", tmp_path / "run", "--out", tmp_path / "p.txt"]
    result = invoke(*predict, "--data", samples / "test.tsv", code=2)
    assert "has no description of its features" in result.output
    assert (
        "cannot be read"
        in invoke("evaluate", "--run", empty, "--data", final / "final_test.parquet", code=2).output
    )


def test_a_wrong_network_is_told_with_its_file(
    tmp_path: Path, model_ini: Path, final: Path
) -> None:
    model_ini.write_text(MODEL.replace("model = fnn", "model = fmn"))

    args = ["train", "--conf", model_ini, "--data", final, "--out", tmp_path / "run"]
    result = invoke(*args, "--set", "train.epoch=1", code=2)

    assert f"{model_ini}: [net] model = fmn is unknown; did you mean fnn?" in result.output


def everything_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "wrong",
    [
        ["--set", "net.model=fmm"],
        ["--set", "net.layers=fc:2,sigmoid:-1"],
        ["--set", "cluster.workers=99999", "--mode", "cluster"],
        ["--data", "EMPTY"],
        ["--data", "BROKEN", "--features", "FEATURES"],
    ],
)
def test_a_training_that_cannot_start_leaves_the_run_before_it_as_it_was(
    tmp_path: Path, model_ini: Path, final: Path, samples: Path, wrong: list[str]
) -> None:
    train = ["train", "--conf", model_ini, "--data", final, "--out", tmp_path / "run"]
    places = {"EMPTY": tmp_path / "empty", "BROKEN": samples, "FEATURES": samples / "features.ini"}
    places["EMPTY"].mkdir()
    (samples / "test.tsv").write_text("too few columns\n")
    invoke(*train)
    before = everything_in(tmp_path / "run")

    invoke(*train, *(places.get(word, word) for word in wrong), code=2)
    invoke(*train[:-1], tmp_path / "fresh", *(places.get(word, word) for word in wrong), code=2)

    assert everything_in(tmp_path / "run") == before
    assert not (tmp_path / "fresh").exists()


def test_a_training_that_fails_on_its_way_leaves_no_model_to_measure(
    tmp_path: Path, model_ini: Path, final: Path, samples: Path
) -> None:
    run, ini = tmp_path / "run", samples / "features.ini"
    invoke("train", "--conf", model_ini, "--features", ini, "--data", samples, "--out", run)
    wild = ["--set", "optimizer.optimizer=sgd", "--set", "optimizer.learning_rate=1e30"]

    invoke("train", "--conf", model_ini, "--data", final, "--out", run, *wild, code=2)
    result = invoke("evaluate", "--run", run, "--data", final / "final_test.parquet", code=2)

    assert "manifest.json cannot be read" in result.output
    assert not any((run / "features").iterdir())


def test_a_run_can_be_repeated_from_what_it_left(
    tmp_path: Path, model_ini: Path, samples: Path
) -> None:
    run, ini = tmp_path / "run", samples / "features.ini"
    invoke("train", "--conf", model_ini, "--features", ini, "--data", samples, "--out", run)
    digest = metrics(run)["digest"]

    invoke("train", "--conf", run / "conf/model.ini", "--data", run / "features", "--out", run)

    assert metrics(run)["digest"] == digest
    invoke("predict", "--run", run, "--data", samples / "test.tsv", "--out", tmp_path / "p")


def test_what_is_ignored_in_an_ini_is_said_again_at_the_end(
    tmp_path: Path, model_ini: Path, samples: Path
) -> None:
    model_ini.write_text(MODEL + "learning_rat = 1\n[trian]\nepoch = 9\n")
    ini = samples / "features.ini"
    ini.write_text(FEATURES + "[inptu]\nformat = csv\n")

    said = invoke(
        "train", "--conf", model_ini, "--features", ini, "--data", samples, "--out", tmp_path / "r"
    ).output

    last = said[said.index("learning curve") :].splitlines()[1:]
    assert [line.partition(" ")[0] for line in last] == ["warning:"] * 3
    assert metrics(tmp_path / "r")["warnings"] == [line.partition(" ")[2] for line in last]
    assert "section [trian] is unknown and ignored; did you mean train?" in last[0]
    assert "[debug] learning_rat is unknown and ignored" in last[1]
    assert "[inptu] is unknown; did you mean 'input'?" in last[2]


def test_overrides_go_to_the_file_of_their_section() -> None:
    given = ["train.epoch=2", "cluster.servers=3", "run.seed=5", "index.index=hash"]
    model, cluster, features = split_overrides(given)

    assert (model, features) == (["train.epoch=2"], ["index.index=hash"])
    assert cluster == ["cluster.servers=3", "run.seed=5"]
    job = cluster_config(None, cluster, servers=None, workers=4, sync=True)
    assert (job.cluster.servers, job.cluster.workers, job.run.seed) == (3, 4, 5)
    assert job.param_sync.mode == "sync"
    with pytest.raises(ConfigError, match=r"no section \[cluter\]; did you mean cluster"):
        split_overrides(["cluter.servers=3"])


def test_a_job_is_called_as_its_run_folder_unless_the_cluster_ini_names_it(tmp_path: Path) -> None:
    plain, named = JobConfig(), JobConfig(run=RunConfig(name="nightly"))

    assert named_after(tmp_path / "dssm  wide", plain).run.name == "dssm wide"
    assert named_after(tmp_path / "wide", named).run.name == "nightly"
    assert named_after(Path("/"), plain) == plain


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["predict"], ["worker"]])
def test_help_shows_an_example_and_loads_no_torch(command: list[str]) -> None:
    code = (
        "import sys; from apps.ctr.cli import main\n"
        "try: main(prog_name='pslite-ctr')\n"
        "finally: print(sorted({'torch', 'numba', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "pslite-ctr" in result.stdout or "pslite local" in result.stdout
    assert result.stderr.strip() == "[]"


FINAL_FILES = ["final_test.parquet", "final_test.tsv"]


def extracted(samples: Path, out: Path, train: str = "train.tsv", **how: Any) -> Path:
    """Features of the samples in both layouts, made of the dictionary of one training file."""
    for layout in ("parquet", "text"):
        ini, test = samples / "features.ini", samples / "test.tsv"
        extract(ini, samples / train, test, out, format=layout, **how)
    return out


@pytest.mark.parametrize("name", FINAL_FILES)
def test_features_of_another_dictionary_are_refused(
    tmp_path: Path, model_ini: Path, samples: Path, name: str
) -> None:
    lines = (samples / "train.tsv").read_text().splitlines(keepends=True)
    (samples / "half.tsv").write_text("".join(lines[:400]))
    own = extracted(samples, tmp_path / "own")
    run, p = tmp_path / "run", tmp_path / "p.txt"
    invoke("train", "--conf", model_ini, "--data", own, "--out", run)

    again = extracted(samples, tmp_path / "again")
    assert "warning" not in invoke("evaluate", "--run", run, "--data", again / name).output
    for number, how in enumerate([{"index": "hash"}, {"min_freq": 9}, {"train": "half.tsv"}]):
        other = extracted(samples, tmp_path / f"other{number}", **how)
        for command in (["evaluate"], ["predict", "--out", p]):
            result = invoke(*command, "--run", run, "--data", other / name, code=2)
            assert f"{other / name}: its sparse values are numbered by" in result.output
            assert "pslite-features apply" in result.output
    assert not p.exists()


@pytest.mark.parametrize("name", FINAL_FILES)
def test_train_and_test_of_two_extractions_are_refused(
    tmp_path: Path, model_ini: Path, samples: Path, name: str
) -> None:
    own = extracted(samples, tmp_path / "own")
    hashed = extracted(samples, tmp_path / "hashed", index="hash")
    (own / "final_test.parquet").unlink()
    if name.endswith("parquet"):
        (hashed / name).rename(own / name)
    else:  # text is described by the file beside it, so the training data is the odd one out
        (hashed / "final_train.parquet").rename(own / "final_train.parquet")

    result = invoke("train", "--conf", model_ini, "--data", own, "--out", tmp_path / "r", code=2)

    assert f"{own / name}: its sparse values are numbered by" in result.output
    assert not (tmp_path / "r" / "metrics.json").exists()


def test_features_that_say_nothing_of_their_dictionary_are_taken_with_a_warning(
    tmp_path: Path, model_ini: Path, samples: Path
) -> None:
    own, run = extracted(samples, tmp_path / "own"), tmp_path / "run"
    invoke("train", "--conf", model_ini, "--data", own, "--out", run)
    bare = tmp_path / "bare.tsv"
    bare.write_bytes((own / "final_test.tsv").read_bytes())

    result = invoke("evaluate", "--run", run, "--data", bare)

    assert f"warning: nothing says which dictionary numbered the sparse values of {bare}" in (
        result.stderr
    )
    assert f"{metrics(run)['test_auc']:.5f}" in result.stdout


@pytest.mark.parametrize("layout", ["parquet", "tsv"])
def test_training_data_without_rows_is_an_error(
    tmp_path: Path, model_ini: Path, generate: Callable[..., Any], layout: str
) -> None:
    file = tmp_path / f"final_train.{layout}"
    made = generate(rows=0, seed=1)
    made.write_parquet(file) if layout == "parquet" else made.write_text(file)

    run = tmp_path / "run"
    result = invoke("train", "--conf", model_ini, "--data", tmp_path, "--out", run, code=2)

    assert f"{file}: has no rows to train on" in result.output


def test_training_data_of_one_class_is_remarked(
    tmp_path: Path, model_ini: Path, generate: Callable[..., Any]
) -> None:
    made = generate(rows=300, seed=1)
    made.labels[:] = 1
    made.write_parquet(tmp_path / "final_train.parquet")

    result = invoke("train", "--conf", model_ini, "--data", tmp_path, "--out", tmp_path / "run")

    assert "all labels of the training data are 1" in result.output
