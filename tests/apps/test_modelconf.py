from __future__ import annotations

import json
from pathlib import Path

import pytest

from apps.ctr.modelconf import Layer, ModelConfig, load_model_config
from van.errors import ConfigError

EXISTING = """
# a file of the format, as users have it
[sparse_dict]
emb_dim = 16
[net]
layers = fc:64,relu:-1,fc:1,sigmoid:-1
model = dssm
[loss]
loss = mse
[optimizer]
optimizer = momentum
learning_rate = 0.1
[train]
epoch = 2
batch_size = 512
[test]
batch_size = 256
[debug]
interval = 10
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.ini"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_existing_file_is_read_as_it_says(tmp_path: Path) -> None:
    conf = load_model_config(write(tmp_path, EXISTING))

    assert conf.sparse_dict.emb_dim == 16
    assert conf.net.layers == (
        Layer("fc", 64),
        Layer("relu", -1),
        Layer("fc", 1),
        Layer("sigmoid", -1),
    )
    assert (conf.net.model, conf.loss.loss) == ("dssm", "mse")
    assert (conf.optimizer.optimizer, conf.optimizer.learning_rate) == ("momentum", 0.1)
    assert (conf.train.epoch, conf.train.batch_size) == (2, 512)
    assert (conf.test.batch_size, conf.debug.interval) == (256, 10)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load_model_config(write(tmp_path, "")) == ModelConfig()


def test_settings_become_json_and_come_back(tmp_path: Path) -> None:
    conf = load_model_config(write(tmp_path, EXISTING))
    plain = json.loads(json.dumps(conf.as_dict()))
    lines = [
        line
        for section, values in plain.items()
        for line in [f"[{section}]", *(f"{k} = {v}" for k, v in values.items() if v is not None)]
    ]

    assert load_model_config(write(tmp_path, "\n".join(lines))) == conf


def test_unknown_keys_and_sections_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = load_model_config(write(tmp_path, "[train]\nepochs = 3\n[extra]\nx = 1\n"))

    assert conf == ModelConfig()
    assert "[train] epochs is unknown and ignored; did you mean epoch?" in caplog.text
    assert "section [extra] is unknown" in caplog.text


def test_an_ini_of_another_kind_is_no_model_ini(tmp_path: Path) -> None:
    features = Path(__file__).resolve().parents[2] / "conf" / "features_taobao.ini"

    with pytest.raises(ConfigError, match=r"features_taobao\.ini: no model ini.*sparse_dict"):
        load_model_config(features, ["train.epoch=2"])


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("[optimizer]\noptimizer = adma", "[optimizer] optimizer", "did you mean adam?"),
        ("[optimizer]\nlearning_rate = fast", "[optimizer] learning_rate", "is not a number"),
        ("[optimizer]\nlearning_rate = 0", "[optimizer] learning_rate", "must be above 0"),
        ("[train]\nbatch_size = 1.5", "[train] batch_size", "is not a whole number"),
        ("[train]\nbatch_size = 0", "[train] batch_size", "must be at least 1"),
        ("[train]\nshuffle = maybe", "[train] shuffle", "neither true nor false"),
        ("[train]\ncache = 3 parsecs", "[train] cache", "is not a size"),
        ("[net]\nlayers = fc:64,rleu:-1", "[net] layers", "did you mean relu?"),
        ("[net]\nlayers = fc", "[net] layers", "needs the number of its outputs"),
        ("[loss]\nloss = hinge", "[loss] loss", "known are cross_entropy, mse"),
    ],
)
def test_a_wrong_value_is_an_error_at_its_place(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    path = write(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        load_model_config(path)

    assert f"{path} {place}: " in str(caught.value)
    assert problem in str(caught.value)


def test_overrides_win_and_are_named_in_errors(tmp_path: Path) -> None:
    path = write(tmp_path, EXISTING)

    conf = load_model_config(path, ["train.epoch=7", "train.epoch=9", "net.layers=fc:1,sigmoid"])

    assert conf.train.epoch == 9
    assert conf.net.layers == (Layer("fc", 1), Layer("sigmoid", -1))
    with pytest.raises(ConfigError, match=r"--set \[train\] epoch"):
        load_model_config(path, ["train.epoch=x"])
    with pytest.raises(ConfigError, match="did you mean train"):
        load_model_config(path, ["trian.epoch=1"])
    with pytest.raises(ConfigError, match="epchs: unknown key; did you mean epoch"):
        load_model_config(path, ["train.epchs=1"])
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_model_config(path, ["epoch=1"])


def test_a_missing_or_broken_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model_config(tmp_path / "absent.ini")
    with pytest.raises(ConfigError, match="is no ini file"):
        load_model_config(write(tmp_path, "epoch = 1"))
