from __future__ import annotations

import pytest
import torch
from sklearn.metrics import log_loss

from apps.ctr.errors import ModelError
from apps.ctr.losses import check_output, probabilities, total_loss
from apps.ctr.modelconf import parse_layers
from apps.ctr.models import NETWORKS, BlockShape, network_class
from apps.ctr.models.dssm import DSSM
from apps.ctr.models.fnn import FNN


def test_fnn_is_its_layers_one_after_the_other() -> None:
    net = FNN({"x": BlockShape(2, 3, 1)}, parse_layers("fc:4,tanh:-1,fc:5,relu:-1,fc:1,sigmoid:-1"))
    x = torch.randn(6, 7)
    first, _, second, _, last = net.head.layers
    hidden = torch.relu(torch.tanh(x @ first.weight.T + first.bias) @ second.weight.T + second.bias)
    expected = torch.sigmoid(hidden @ last.weight.T + last.bias)[:, 0]

    assert net.output == "logit"
    torch.testing.assert_close(probabilities(net(x=x), net.output), expected)


def test_a_softmax_over_two_gives_the_probability_of_a_click() -> None:
    net = FNN({"x": BlockShape(1, 3, 0)}, parse_layers("fc:2,softmax:-1"))
    x = torch.randn(5, 3)
    linear = net.head.layers[0]

    expected = torch.softmax(linear(x), dim=1)[:, 1]

    torch.testing.assert_close(probabilities(net(x=x), net.output), expected)


def test_dssm_is_the_sigmoid_of_the_dot_product_of_two_towers() -> None:
    shapes = {"user": BlockShape(2, 3, 1), "ad": BlockShape(1, 3, 0)}
    net = DSSM(shapes, parse_layers("fc:4,relu:-1,fc:2,softmax:-1"))
    user, ad = torch.randn(6, 7), torch.randn(6, 3)

    def tower(layers: torch.nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x @ layers[0].weight.T + layers[0].bias)
        return torch.softmax(hidden @ layers[2].weight.T + layers[2].bias, dim=1)

    expected = torch.sigmoid((tower(net.user, user) * tower(net.ad, ad)).sum(dim=1))

    assert set(net.blocks) == {"user", "ad"}
    torch.testing.assert_close(probabilities(net(user=user, ad=ad), net.output), expected)


def test_losses_are_sums_over_the_rows() -> None:
    out, labels = torch.tensor([-3.0, 0.5, 2.0]), torch.tensor([0.0, 1.0, 0.0])
    p = torch.sigmoid(out)
    entropy = 3 * log_loss(labels.numpy(), p.numpy())

    for given, output in ((out, "logit"), (p, "probability")):
        found = total_loss(given, labels, output=output, loss="cross_entropy")
        squares = total_loss(given, labels, output=output, loss="mse")
        assert float(found) == pytest.approx(entropy, rel=1e-5)
        assert float(squares) == pytest.approx(float(((p - labels) ** 2).sum()), rel=1e-5)


def test_a_saturated_logit_still_has_a_gradient() -> None:
    out = torch.tensor([200.0], requires_grad=True)

    loss = total_loss(out, torch.zeros(1), output="logit", loss="cross_entropy")
    loss.backward()

    assert (float(loss.detach()), out.grad) == (200.0, torch.ones(1))


@pytest.mark.parametrize("layers", ["fc:3,sigmoid:-1", "fc:1,softmax:-1", "fc:2", "sigmoid:-1"])
def test_layers_that_give_no_probability_are_refused(layers: str) -> None:
    with pytest.raises(ModelError, match="end in fc:1,sigmoid:-1 or in fc:2,softmax:-1"):
        FNN({"x": BlockShape(2, 3, 1)}, parse_layers(layers))


def test_cross_entropy_wants_a_probability() -> None:
    net = FNN({"x": BlockShape(1, 2, 0)}, parse_layers("fc:4,relu:-1,fc:1"))

    check_output(net.output, "mse")
    with pytest.raises(ModelError, match=r"end \[net\] layers in sigmoid"):
        check_output(net.output, "cross_entropy")


def test_dssm_without_features_of_one_side_is_refused() -> None:
    shapes = {"user": BlockShape(2, 3, 1), "ad": BlockShape(0, 3, 0)}
    with pytest.raises(ModelError, match="dssm needs ad features"):
        DSSM(shapes, parse_layers("fc:4"))


def test_networks_are_found_by_name() -> None:
    assert network_class("fnn") is FNN
    assert network_class("dssm") is DSSM
    assert network_class("apps.ctr.models.fnn:FNN") is FNN
    assert set(NETWORKS) == {"fnn", "dssm"}
    for name, problem in [
        ("fmn", "did you mean fnn?"),
        ("no.such.module:X", "cannot import no.such.module"),
        ("apps.ctr.models.fnn:FMN", "no FMN in apps.ctr.models.fnn"),
        ("apps.ctr.models:network_class", "no subclass"),
    ]:
        with pytest.raises(ModelError, match=problem):
            network_class(name)


def test_each_parameter_of_the_built_in_networks_has_an_initialiser() -> None:
    shapes = {name: BlockShape(2, 3, 1) for name in ("x", "user", "ad")}
    for kind in NETWORKS.values():
        net = kind(shapes, parse_layers("fc:4,tanh:-1,fc:1,sigmoid:-1"))
        assert net.initializers().keys() == dict(net.named_parameters()).keys()
