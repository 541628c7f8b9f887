"""Built-in models; MODELS lists them by name. Initial weights are a function of the seed alone."""

from __future__ import annotations

from offbeat.scenario.models.convolutional import ASO_FED_FASHION as ASO_FED_FASHION
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST as FEDCOMPASS_MNIST
from offbeat.scenario.models.convolutional import FEDPSA_CIFAR as FEDPSA_CIFAR
from offbeat.scenario.models.convolutional import FEDPSA_MNIST as FEDPSA_MNIST
from offbeat.scenario.models.convolutional import Cnn, LeNet5, Linear, Mlp, UNet3d, Vgg11
from offbeat.scenario.models.model_interface import Model, Shape
from offbeat.scenario.models.model_interface import seeded as seeded
from offbeat.scenario.models.residual_networks import EfficientNet, MobileNetV2, ResNet, ResNet1d
from offbeat.scenario.models.sequence import DistilBert, Lstm, TextCnn

__all__ = [
    "MODELS", "Model", "Shape", "Cnn", "DistilBert", "EfficientNet", "LeNet5", "Linear", "Lstm", "Mlp", "MobileNetV2",
    "ResNet", "ResNet1d", "TextCnn", "UNet3d", "Vgg11",
]  # fmt: skip

MODELS: dict[str, type[Model]] = {
    "linear": Linear,
    "mlp": Mlp,
    "cnn": Cnn,
    "lenet5": LeNet5,
    "vgg11": Vgg11,
    "resnet": ResNet,
    "resnet1d": ResNet1d,
    "mobilenetv2": MobileNetV2,
    "efficientnet": EfficientNet,
    "textcnn": TextCnn,
    "lstm": Lstm,
    "unet3d": UNet3d,
    "distilbert": DistilBert,
}
