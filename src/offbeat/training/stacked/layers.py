"""The forward pass of a stack of clients, layer by layer: every client its own weights, no vmap.

A model is traced once (torch.fx), and each of its layers has a form for stacked weights: matrix products become
batched ones, what works entry by entry works as it is. Models with other layers, or whose way depends on the values,
have no such form: `stacked` says why, and they are mapped (training/stacked/stack_trainer.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn, vmap
from torch.nn import functional as F

from offbeat.training.cuda.norm_relu import Followed, followed
from offbeat.training.dropout import CHANNELS, SERVED, noise_at, uniform
from offbeat.training.stacked.convolution import Geometry, avg_pool, convolve, has_kernels, max_pool
from offbeat.training.stacked.masked_batch_norm import NORMS, Batch, batch_norm

Params = Mapping[str, Tensor]  # by name, (clients, *shape)
Forward = Callable[[Params, Tensor, Tensor | None, Batch], Tensor]
Layer = Callable[["Pass", str, nn.Module, Tensor], Tensor]


class NotStacked(Exception):
    """Why a model has no stacked form."""


class Pass:
    """What one forward pass of a stack has at hand: the weights, the noise of this step for each client, and what
    BatchNorm needs to know of it.
    """

    def __init__(self, params: Params, keys: Tensor | None, sites: Mapping[str, int], batch: Batch) -> None:
        self.params, self.keys, self.batch = params, keys, batch
        self.sites = sites  # the dropout layers by name, numbered as `dropout.Masks` does
        self.calls: dict[int, int] = {}

    def of(self, prefix: str, name: str) -> Tensor:
        return self.params[f"{prefix}.{name}" if prefix else name]


def stacked(module: nn.Module) -> Forward:
    """forward(params, x, keys, batch) with a leading client dimension everywhere; raises NotStacked."""
    if module._forward_hooks:
        raise NotStacked("the model has hooks of its own")
    sites = {name: i for i, (name, m) in enumerate((n, m) for n, m in module.named_modules() if type(m) in SERVED)}
    if type(module) in LAYERS:
        if (why := _unusual(module)) is not None:
            raise NotStacked(why)
        return partial(_alone, module, sites)
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:  # whatever a model does with values that are not there yet
        raise NotStacked(f"{type(module).__name__} cannot be traced ({str(error).splitlines()[0][:80]})") from None
    for node in traced.graph.nodes:
        _check(module, node)
    nodes = tuple(traced.graph.nodes)
    return partial(_run, module, sites, nodes, followed(module, nodes, FOLLOWED))


def _alone(
    module: nn.Module, sites: Mapping[str, int], params: Params, x: Tensor, keys: Tensor | None, batch: Batch
) -> Tensor:
    return LAYERS[type(module)](Pass(params, keys, sites, batch), "", module, _entered(module, x))


def _check(module: nn.Module, node: fx.Node) -> None:
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if type(layer) not in LAYERS:
            raise NotStacked(f"{node.target} is a {type(layer).__name__}")
        if (why := _unusual(layer)) is not None:
            raise NotStacked(f"{node.target}: {why}")
        if layer._forward_pre_hooks or layer._forward_hooks:
            raise NotStacked(f"{node.target} has hooks")
        if getattr(layer, "inplace", False) and _read_again(node):
            raise NotStacked(f"{node.target} changes what is read again")
    elif node.op == "call_function" and node.target not in FUNCTIONS:
        raise NotStacked(f"it calls {getattr(node.target, '__name__', node.target)}")
    elif node.op == "call_method" and node.target not in METHODS:
        raise NotStacked(f"it calls .{node.target}()")
    elif node.op in ("call_function", "call_method") and node.kwargs.get("inplace") and _read_again(node):
        raise NotStacked(f"{node.target} changes what is read again")
    elif node.op in ("call_function", "call_method") and set(node.kwargs) - {"inplace"}:
        raise NotStacked(f"it calls {node.target} with {', '.join(node.kwargs)}")
    elif node.op == "get_attr":
        raise NotStacked(f"it uses {node.target} outside of a layer")


def _read_again(node: fx.Node) -> bool:
    return any(len(given.users) > 1 for given in node.all_input_nodes)


def _unusual(layer: nn.Module) -> str | None:
    """What of a layer the stacked form does not do."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d) and (
        layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    ):
        return "a convolution in groups, or with padding that is not of zeros"
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        side, padding = _pair(layer.kernel_size), _pair(layer.padding)
        whole = not layer.ceil_mode and padding == (0, 0) and _pair(layer.stride) == side
        if not whole or (isinstance(layer, nn.MaxPool2d) and (_pair(layer.dilation) != (1, 1) or layer.return_indices)):
            return "a pooling whose windows overlap"
    if isinstance(layer, NORMS) and not layer.training:
        return "a BatchNorm that does not train with the others"
    if isinstance(layer, nn.AvgPool2d) and layer.divisor_override is not None:
        return "a pooling with a divisor of its own"
    if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size not in (1, (1, 1), [1, 1]):
        return "an adaptive pooling to more than one place"
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.sparse or layer.scale_grad_by_freq):
        return "an embedding that changes itself"
    if isinstance(layer, nn.Flatten) and (layer.start_dim != 1 or layer.end_dim != -1):
        return "a flattening of some dimensions"
    return None


def _run(
    module: nn.Module,
    sites: Mapping[str, int],
    nodes: tuple[fx.Node, ...],
    together: Mapping[str, Followed | None],
    params: Params,
    x: Tensor,
    keys: Tensor | None,
    batch: Batch,
) -> Tensor:
    now = Pass(params, keys, sites, batch)
    values: dict[str, Tensor] = {}
    for node in nodes:
        if node.name in together:
            if (whole := together[node.name]) is not None:
                name, given = str(whole.norm.target), _value(whole.norm.args[0], values)
                added = None if whole.added is None else _value(whole.added, values)
                layer = module.get_submodule(name)
                values[node.name] = FOLLOWED[type(layer)](now, name, layer, given, added, True)
        elif node.op == "placeholder":
            values[node.name] = _entered(module, x)
        elif node.op == "output":
            out: Tensor = _value(node.args[0], values)
            return out
        elif node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            values[node.name] = LAYERS[type(layer)](now, str(node.target), layer, _value(node.args[0], values))
        else:
            table: Mapping[Any, Callable[..., Tensor]] = FUNCTIONS if node.op == "call_function" else METHODS
            values[node.name] = table[node.target](*(_value(arg, values) for arg in node.args))
    raise AssertionError("a traced model has an output")


def _value(arg: Any, values: Mapping[str, Any]) -> Any:
    return values[arg.name] if isinstance(arg, fx.Node) else arg


def _entered(module: nn.Module, x: Tensor) -> Tensor:
    """What the module's own hooks make of its inputs (pixels of bytes), which takes examples as they come."""
    flat = x.flatten(0, 1)
    for hook in module._forward_pre_hooks.values():
        given = hook(module, (flat,))
        if given is not None:
            flat = given[0] if isinstance(given, tuple) else given
    return flat.view(*x.shape[:2], *flat.shape[1:])


# ---------------------------------------------------------------- layers


def _linear(now: Pass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    weight = now.of(name, "weight").transpose(1, 2)
    flat = x.flatten(1, -2)
    if layer.bias is None:
        out = torch.bmm(flat, weight)
    else:
        out = torch.baddbmm(now.of(name, "bias")[:, None, :], flat, weight)
    return out.view(*x.shape[:-1], -1)


def _conv2d(now: Pass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else now.of(name, "bias")
    geometry = Geometry(layer.kernel_size, layer.stride, layer.padding, layer.dilation)  # type: ignore[arg-type]
    return _channels_second(convolve(_channels_last(x), now.of(name, "weight"), bias, geometry))


def _conv1d(now: Pass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """A picture one pixel high."""
    bias = None if layer.bias is None else now.of(name, "bias")
    sides = (layer.kernel_size, layer.stride, layer.dilation)
    kernel, stride, dilation = ((1, int(side[0])) for side in sides)  # type: ignore[index]
    geometry = Geometry(kernel, stride, (0, int(layer.padding[0])), dilation)  # type: ignore[index]
    picture = _channels_last(x[:, :, :, None])
    return _channels_second(convolve(picture, now.of(name, "weight")[:, :, :, None], bias, geometry)).squeeze(3)


def _pool(pool: Callable[[Tensor, tuple[int, int]], Tensor], now: Pass, name: str, layer: Any, x: Tensor) -> Tensor:
    return _channels_second(pool(_channels_last(x), _pair(layer.kernel_size)))


def _group_norm(now: Pass, name: str, layer: Any, x: Tensor, added: Tensor | None = None, cut: bool = False) -> Tensor:
    return group_norm(x, *_scale_and_shift(now, name, layer), layer, added, cut)


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: Any, added: Tensor | None = None, cut: bool = False
) -> Tensor:
    """x (clients, examples, channels, …), weight and bias (clients, channels). Something may be added to what comes
    out, and what is then below zero cut off.
    """
    pictures = x.dim() == 5 and x.dtype == torch.float32 and weight is not None and bias is not None
    if pictures and (added is None or added.shape == x.shape) and has_kernels(x.device.type):
        from offbeat.training.cuda.norm_triton import GroupNorm

        also = None if added is None else _channels_last(added)
        ways = (also, cut, layer.num_groups, layer.eps)
        return _channels_second(GroupNorm.apply(_channels_last(x), weight, bias, *ways))  # type: ignore[no-untyped-call]
    normal = F.group_norm(x.flatten(0, 1), layer.num_groups, eps=layer.eps)
    out = _affine(weight, bias, normal, x, 2)
    out = out if added is None else out + added
    return out.relu() if cut else out


def _batch_norm(now: Pass, name: str, layer: Any, x: Tensor, added: Tensor | None = None, cut: bool = False) -> Tensor:
    return batch_norm(x, *_scale_and_shift(now, name, layer), name, layer, now.batch, added, cut)


def _layer_norm(now: Pass, name: str, layer: Any, x: Tensor) -> Tensor:
    at = x.dim() - len(layer.normalized_shape)
    weight, bias = _scale_and_shift(now, name, layer)
    return _affine(weight, bias, F.layer_norm(x, layer.normalized_shape, eps=layer.eps), x, at)


def _scale_and_shift(now: Pass, name: str, layer: Any) -> tuple[Tensor | None, Tensor | None]:
    """Of a norm, which may have either, both or none."""
    weight, bias = (None if getattr(layer, kind, None) is None else now.of(name, kind) for kind in ("weight", "bias"))
    return weight, bias


def _affine(weight: Tensor | None, bias: Tensor | None, normal: Tensor, x: Tensor, at: int) -> Tensor:
    """Scaled and shifted along the dimensions from `at` on, every client by its own."""

    def along(own: Tensor) -> Tensor:
        return own.view(len(own), *(1,) * (at - 1), *own.shape[1:], *(1,) * (x.dim() - at - own.dim() + 1))

    normal = normal.view(x.shape)
    normal = normal if weight is None else normal * along(weight)
    return normal if bias is None else normal + along(bias)


def _embedding(now: Pass, name: str, layer: Any, x: Tensor) -> Tensor:
    weight = now.of(name, "weight")
    first = torch.arange(len(weight), device=x.device) * weight.shape[1]
    places = x + first.view(-1, *(1,) * (x.dim() - 1))
    if layer.padding_idx is None:
        return F.embedding(places, weight.flatten(0, 1))
    out = F.embedding(places, weight.flatten(0, 1))
    return torch.where((x == layer.padding_idx)[..., None], out.detach(), out)  # its row is never trained


def _dropout(now: Pass, name: str, layer: Any, x: Tensor) -> Tensor:
    p = float(layer.p)
    if not layer.training or p == 0:
        return x
    if p >= 1:
        return x * 0.0
    assert now.keys is not None
    number, shape = now.sites[name], tuple(x.shape[1:])
    if isinstance(layer, CHANNELS):
        channels = 2 if len(shape) >= 2 + CHANNELS.index(type(layer)) + 1 else 1  # as `dropout.Masks` has it
        shape = (*shape[:channels], *(1 for _ in shape[channels:]))
    call = now.calls[number] = now.calls.get(number, -1) + 1
    drawn = vmap(lambda key: uniform(key, shape))(now.keys + noise_at(number, call))
    return torch.where(drawn >= p, x, 0.0) / (1 - p)


def _entrywise(now: Pass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = layer(x.clone() if getattr(layer, "inplace", False) else x)
    return out


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2)


def _channels_second(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3)


def _pair(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else (int(given[0]), int(given[1]))


FOLLOWED: dict[type[nn.Module], Callable[..., Tensor]] = {nn.GroupNorm: _group_norm, nn.BatchNorm2d: _batch_norm}
LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.Conv1d: _conv1d,
    nn.MaxPool2d: partial(_pool, max_pool),
    nn.AvgPool2d: partial(_pool, avg_pool),
    nn.AdaptiveAvgPool2d: lambda now, name, layer, x: x.mean((3, 4), keepdim=True),
    nn.GroupNorm: _group_norm,
    **dict.fromkeys(NORMS, _batch_norm),
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.Flatten: lambda now, name, layer, x: x.flatten(2),
    **dict.fromkeys(SERVED, _dropout),
    **dict.fromkeys(
        (nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Hardswish, nn.ReLU6),
        _entrywise,
    ),
}

FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    operator.add: operator.add,
    operator.mul: operator.mul,
    torch.add: torch.add,
    torch.relu: torch.relu,
    torch.tanh: torch.tanh,
    torch.sigmoid: torch.sigmoid,
    F.relu: lambda x, *_: x.relu(),
    F.gelu: F.gelu,
}
METHODS: dict[str, Callable[..., Tensor]] = {
    "relu": Tensor.relu,
    "tanh": Tensor.tanh,
    "sigmoid": Tensor.sigmoid,
    "add": Tensor.add,
}
