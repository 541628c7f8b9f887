"""The forward pass of a stack of clients, layer by layer, each client with its own weights, without vmap.

A model is traced once with torch.fx. Matrix products become batched products; elementwise operations stay unchanged.
Models with other layers or data-dependent control flow raise `NotStackable` and use vmap instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn, vmap
from torch.nn import functional as F

from offbeat.core.draws import hashed_uniform, site_noise
from offbeat.training.cuda.norm_relu import FusedNorm, find_fused_norms
from offbeat.training.dropout import CHANNEL_DROPOUTS, SUPPORTED
from offbeat.training.stacked.convolution import Geometry, avg_pool, convolve, has_kernels, max_pool
from offbeat.training.stacked.masked_batch_norm import NORMS, BatchMask, batch_norm

AnyLayer = Any  # a module of the class for which a function is registered below
Params = Mapping[str, Tensor]  # by name, (clients, *shape)
Forward = Callable[[Params, Tensor, Tensor | None, BatchMask], Tensor]
Layer = Callable[["ForwardContext", str, nn.Module, Tensor], Tensor]


class NotStackable(Exception):
    """Raised with the reason if a model has no stacked form."""


class ForwardContext:
    """The weights, dropout keys and batch mask of one forward pass of a stack."""

    def __init__(self, params: Params, keys: Tensor | None, sites: Mapping[str, int], batch: BatchMask) -> None:
        self.params, self.keys, self.batch = params, keys, batch
        self.sites = sites  # the dropout layers by name, numbered as `dropout.Masks` does
        self.calls: dict[int, int] = {}

    def parameter(self, prefix: str, name: str) -> Tensor:
        """Return a parameter of a layer, one per client."""
        return self.params[f"{prefix}.{name}" if prefix else name]


def stack_module(module: nn.Module) -> Forward:
    """Return `forward(params, x, keys, batch)` with a leading client dimension; raises NotStackable."""
    if module._forward_hooks:
        raise NotStackable("the model has hooks of its own")
    sites = {name: i for i, (name, m) in enumerate((n, m) for n, m in module.named_modules() if type(m) in SUPPORTED)}
    if type(module) in LAYERS:
        if (why := _unsupported_option(module)) is not None:
            raise NotStackable(why)
        return partial(_run_single, module, sites)
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:  # whatever a model does with values that are not there yet
        raise NotStackable(f"{type(module).__name__} cannot be traced ({str(error).splitlines()[0][:80]})") from None
    for node in traced.graph.nodes:
        _check_node(module, node)
    nodes = tuple(traced.graph.nodes)
    return partial(_run_graph, module, sites, nodes, find_fused_norms(module, nodes, FUSED_NORMS))


def _run_single(
    module: nn.Module, sites: Mapping[str, int], params: Params, x: Tensor, keys: Tensor | None, batch: BatchMask
) -> Tensor:
    """Run a module that is a single layer, without tracing it."""
    return LAYERS[type(module)](ForwardContext(params, keys, sites, batch), "", module, _apply_input_hooks(module, x))


def _check_node(module: nn.Module, node: fx.Node) -> None:
    """Raise NotStackable if an operation of the traced model has no stacked form."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if type(layer) not in LAYERS:
            raise NotStackable(f"{node.target} is a {type(layer).__name__}")
        if (why := _unsupported_option(layer)) is not None:
            raise NotStackable(f"{node.target}: {why}")
        if layer._forward_pre_hooks or layer._forward_hooks:
            raise NotStackable(f"{node.target} has hooks")
        if getattr(layer, "inplace", False) and _is_read_again(node):
            raise NotStackable(f"{node.target} changes what is read again")
    elif node.op == "call_function" and node.target not in FUNCTIONS:
        raise NotStackable(f"it calls {getattr(node.target, '__name__', node.target)}")
    elif node.op == "call_method" and node.target not in METHODS:
        raise NotStackable(f"it calls .{node.target}()")
    elif node.op in ("call_function", "call_method") and node.kwargs.get("inplace") and _is_read_again(node):
        raise NotStackable(f"{node.target} changes what is read again")
    elif node.op in ("call_function", "call_method") and set(node.kwargs) - {"inplace"}:
        raise NotStackable(f"it calls {node.target} with {', '.join(node.kwargs)}")
    elif node.op == "get_attr":
        raise NotStackable(f"it uses {node.target} outside of a layer")


def _is_read_again(node: fx.Node) -> bool:
    """Return whether another operation reads an input of this node."""
    return any(len(value.users) > 1 for value in node.all_input_nodes)


def _unsupported_option(layer: nn.Module) -> str | None:
    """Return an option of a layer that the stacked form does not support, or None."""
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


def _run_graph(
    module: nn.Module,
    sites: Mapping[str, int],
    nodes: tuple[fx.Node, ...],
    together: Mapping[str, FusedNorm | None],
    params: Params,
    x: Tensor,
    keys: Tensor | None,
    batch: BatchMask,
) -> Tensor:
    """Run the operations of a traced model for all clients."""
    now = ForwardContext(params, keys, sites, batch)
    values: dict[str, Tensor] = {}
    for node in nodes:
        if node.name in together:
            if (whole := together[node.name]) is not None:
                name, value = str(whole.norm.target), _resolve(whole.norm.args[0], values)
                added = None if whole.added is None else _resolve(whole.added, values)
                layer = module.get_submodule(name)
                values[node.name] = FUSED_NORMS[type(layer)](now, name, layer, value, added, True)
        elif node.op == "placeholder":
            values[node.name] = _apply_input_hooks(module, x)
        elif node.op == "output":
            out: Tensor = _resolve(node.args[0], values)
            return out
        elif node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            values[node.name] = LAYERS[type(layer)](now, str(node.target), layer, _resolve(node.args[0], values))
        else:
            table: Mapping[Any, Callable[..., Tensor]] = FUNCTIONS if node.op == "call_function" else METHODS
            values[node.name] = table[node.target](*(_resolve(arg, values) for arg in node.args))
    raise AssertionError("a traced model has an output")


def _resolve(arg: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of an argument."""
    return values[arg.name] if isinstance(arg, fx.Node) else arg


def _apply_input_hooks(module: nn.Module, x: Tensor) -> Tensor:
    """Apply the module's own forward pre-hooks to inputs."""
    flat = x.flatten(0, 1)
    for hook in module._forward_pre_hooks.values():
        value = hook(module, (flat,))
        if value is not None:
            flat = value[0] if isinstance(value, tuple) else value
    return flat.view(*x.shape[:2], *flat.shape[1:])


# ---------------------------------------------------------------- layers


def _linear(now: ForwardContext, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """Compute a fully connected layer."""
    weight = now.parameter(name, "weight").transpose(1, 2)
    flat = x.flatten(1, -2)
    if layer.bias is None:
        out = torch.bmm(flat, weight)
    else:
        out = torch.baddbmm(now.parameter(name, "bias")[:, None, :], flat, weight)
    return out.view(*x.shape[:-1], -1)


def _conv2d(now: ForwardContext, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """Compute a 2D convolution."""
    bias = None if layer.bias is None else now.parameter(name, "bias")
    geometry = Geometry(layer.kernel_size, layer.stride, layer.padding, layer.dilation)  # type: ignore[arg-type]
    return _channels_second(convolve(_channels_last(x), now.parameter(name, "weight"), bias, geometry))


def _conv1d(now: ForwardContext, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """Convolve an image of height one."""
    bias = None if layer.bias is None else now.parameter(name, "bias")
    sides = (layer.kernel_size, layer.stride, layer.dilation)
    kernel, stride, dilation = ((1, int(side[0])) for side in sides)  # type: ignore[index]
    geometry = Geometry(kernel, stride, (0, int(layer.padding[0])), dilation)  # type: ignore[index]
    picture = _channels_last(x[:, :, :, None])
    return _channels_second(convolve(picture, now.parameter(name, "weight")[:, :, :, None], bias, geometry)).squeeze(3)


def _pool(
    pool: Callable[[Tensor, tuple[int, int]], Tensor], now: ForwardContext, name: str, layer: AnyLayer, x: Tensor
) -> Tensor:
    """Compute a pooling layer."""
    return _channels_second(pool(_channels_last(x), _pair(layer.kernel_size)))


def _group_norm(
    now: ForwardContext, name: str, layer: AnyLayer, x: Tensor, added: Tensor | None = None, cut: bool = False
) -> Tensor:
    """Compute a GroupNorm layer, with an optional residual and ReLU."""
    return group_norm(x, *_affine_parameters(now, name, layer), layer, added, cut)


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    layer: AnyLayer,
    added: Tensor | None = None,
    cut: bool = False,
) -> Tensor:
    """Normalize x (clients, examples, channels, …) with weight and bias (clients, channels).

    Optionally adds a tensor to the result and applies ReLU.
    """
    pictures = x.dim() == 5 and x.dtype == torch.float32 and weight is not None and bias is not None
    if pictures and (added is None or added.shape == x.shape) and has_kernels(x.device.type):
        from offbeat.training.cuda.norm_triton import GroupNorm

        also = None if added is None else _channels_last(added)
        ways = (also, cut, layer.num_groups, layer.eps)
        return _channels_second(GroupNorm.apply(_channels_last(x), weight, bias, *ways))  # type: ignore[no-untyped-call]
    normal = F.group_norm(x.flatten(0, 1), layer.num_groups, eps=layer.eps)
    out = _scale_and_shift(weight, bias, normal, x, 2)
    out = out if added is None else out + added
    return out.relu() if cut else out


def _batch_norm(
    now: ForwardContext, name: str, layer: AnyLayer, x: Tensor, added: Tensor | None = None, cut: bool = False
) -> Tensor:
    """Compute a BatchNorm layer, with an optional residual and ReLU."""
    return batch_norm(x, *_affine_parameters(now, name, layer), name, layer, now.batch, added, cut)


def _layer_norm(now: ForwardContext, name: str, layer: AnyLayer, x: Tensor) -> Tensor:
    """Compute a LayerNorm layer."""
    at = x.dim() - len(layer.normalized_shape)
    weight, bias = _affine_parameters(now, name, layer)
    return _scale_and_shift(weight, bias, F.layer_norm(x, layer.normalized_shape, eps=layer.eps), x, at)


def _affine_parameters(now: ForwardContext, name: str, layer: AnyLayer) -> tuple[Tensor | None, Tensor | None]:
    """Return weight and bias of a norm, each of which may be None."""
    weight, bias = (
        None if getattr(layer, kind, None) is None else now.parameter(name, kind) for kind in ("weight", "bias")
    )
    return weight, bias


def _scale_and_shift(weight: Tensor | None, bias: Tensor | None, normal: Tensor, x: Tensor, at: int) -> Tensor:
    """Scale and shift each client's values along the dimensions from `at` on."""

    def along(values: Tensor) -> Tensor:
        """Return each client's values in a shape that broadcasts over the inputs."""
        return values.view(len(values), *(1,) * (at - 1), *values.shape[1:], *(1,) * (x.dim() - at - values.dim() + 1))

    normal = normal.view(x.shape)
    normal = normal if weight is None else normal * along(weight)
    return normal if bias is None else normal + along(bias)


def _embedding(now: ForwardContext, name: str, layer: AnyLayer, x: Tensor) -> Tensor:
    """Look up embeddings in one table for all clients."""
    weight = now.parameter(name, "weight")
    first = torch.arange(len(weight), device=x.device) * weight.shape[1]
    places = x + first.view(-1, *(1,) * (x.dim() - 1))
    if layer.padding_idx is None:
        return F.embedding(places, weight.flatten(0, 1))
    out = F.embedding(places, weight.flatten(0, 1))
    return torch.where((x == layer.padding_idx)[..., None], out.detach(), out)  # its row is never trained


def _dropout(now: ForwardContext, name: str, layer: AnyLayer, x: Tensor) -> Tensor:
    """Drop entries or channels with the key of each client."""
    p = float(layer.p)
    if not layer.training or p == 0:
        return x
    if p >= 1:
        return x * 0.0
    assert now.keys is not None
    number, shape = now.sites[name], tuple(x.shape[1:])
    if isinstance(layer, CHANNEL_DROPOUTS):
        channels = 2 if len(shape) >= 2 + CHANNEL_DROPOUTS.index(type(layer)) + 1 else 1  # as `DropoutMasks` does
        shape = (*shape[:channels], *(1 for _ in shape[channels:]))
    call = now.calls[number] = now.calls.get(number, -1) + 1
    drawn = vmap(lambda key: hashed_uniform(key, shape))(now.keys + site_noise(number, call))
    return torch.where(drawn >= p, x, 0.0) / (1 - p)


def _entrywise(now: ForwardContext, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    """Compute a layer that treats each entry alone."""
    out: Tensor = layer(x.clone() if getattr(layer, "inplace", False) else x)
    return out


def _channels_last(x: Tensor) -> Tensor:
    """Move channels behind the image axes."""
    return x.permute(0, 1, 3, 4, 2)


def _channels_second(x: Tensor) -> Tensor:
    """Move channels before the image axes."""
    return x.permute(0, 1, 4, 2, 3)


def _pair(value: Any) -> tuple[int, int]:
    """Return an option for both axes of an image."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


FUSED_NORMS: dict[type[nn.Module], Callable[..., Tensor]] = {nn.GroupNorm: _group_norm, nn.BatchNorm2d: _batch_norm}
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
    **dict.fromkeys(SUPPORTED, _dropout),
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
