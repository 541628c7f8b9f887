"""Plain descent of one fully connected layer under cross entropy, on a CPU: all steps of a job in one loop (Numba).

A step of such a model is some hundred thousand products, and a call of a library for each part of it takes as long
as they do; gathering a batch so that it lies together takes longer still. Here examples are read where they are, four
at a time, and the weights of a client stay in a core's nearest memory from its first step to its last. A client's
numbers depend on its own job alone, never on what it is stacked with, and no lock of Python's is held meanwhile.
`training/stacked/compiled_linear.py` says when it may be used; `training/cuda/linear_softmax_triton.py` is the same for a GPU.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

# mypy: ignore-errors

# sums may be taken in any order, which is what makes them quick; what is not a number stays none
LOOSE = {"reassoc", "contract", "arcp", "nsz"}
compiled = partial(njit, fastmath=LOOSE, nogil=True, error_model="numpy")
# Within each other, always: a part that is called is another one in the process that compiles than in one that finds
# all of it compiled already, and so are its last bits.
part = compiled(forceinline=True)

LINE = 64  # bytes that a core reads and writes together
M32 = np.uint64(0xFFFFFFFF)


@intrinsic
def _pointer(_, address, like):
    """To numbers of the kind that `like` holds."""

    def made(context, builder, signature, given):
        return builder.inttoptr(given[0], context.get_value_type(types.CPointer(like.dtype)))

    return types.CPointer(like.dtype)(address, like), made


@part
def seeded(state, seed):
    """torch's generator on the host: MT19937, seeded with 32 bits."""
    s = np.uint64(seed) & M32
    state[0] = s
    for i in range(1, 624):
        s = ((s ^ (s >> np.uint64(30))) * np.uint64(1812433253) + np.uint64(i)) & M32
        state[i] = s


@part
def twisted(state):
    """The next 624 numbers."""
    for k in range(624):
        y = (np.uint64(state[k]) & np.uint64(0x80000000)) | (np.uint64(state[(k + 1) % 624]) & np.uint64(0x7FFFFFFF))
        odd = np.uint64(0x9908B0DF) if y & np.uint64(1) else np.uint64(0)
        state[k] = np.uint64(state[(k + 397) % 624]) ^ (y >> np.uint64(1)) ^ odd


@part
def shuffled(state, used, order, n):
    """As torch.randperm(n) with a generator of which so many numbers are used; how many are now."""
    for i in range(n):
        order[i] = i
    for i in range(n - 1):
        if used == 624:
            twisted(state)
            used = 0
        y = np.uint64(state[used])
        used += 1
        y ^= y >> np.uint64(11)
        y ^= (y << np.uint64(7)) & np.uint64(0x9D2C5680)
        y ^= (y << np.uint64(15)) & np.uint64(0xEFC60000)
        y ^= y >> np.uint64(18)
        z = i + np.int64((y & M32) % np.uint64(n - i))
        order[i], order[z] = order[z], order[i]
    return used


@compiled(cache=True)
def permutations(seed, n, epochs):
    """As many as there are epochs, one after the other."""
    state, used = np.empty(624, np.uint32), 624
    order = np.empty(n * epochs, np.int64)
    seeded(state, seed)
    for epoch in range(epochs):
        used = shuffled(state, used, order[epoch * n : (epoch + 1) * n], n)
    return order


@part
def outputs(x, chosen, size, w, out):
    """out[i, c] = x[chosen[i]] · w[c], four examples and five classes at a time: twenty sums in a core's registers."""
    classes, features = w.shape
    zero = w.dtype.type(0)
    for i in range(0, size, 4):
        x0, x1 = x[chosen[i]], x[chosen[min(i + 1, size - 1)]]
        x2, x3 = x[chosen[min(i + 2, size - 1)]], x[chosen[min(i + 3, size - 1)]]
        fives = classes // 5 * 5
        for c in range(0, fives, 5):
            w0, w1, w2, w3, w4 = w[c], w[c + 1], w[c + 2], w[c + 3], w[c + 4]
            a00 = a10 = a20 = a30 = a01 = a11 = a21 = a31 = a02 = a12 = zero
            a22 = a32 = a03 = a13 = a23 = a33 = a04 = a14 = a24 = a34 = zero
            for k in range(features):
                v0, v1, v2, v3 = x0[k], x1[k], x2[k], x3[k]
                u0, u1, u2, u3, u4 = w0[k], w1[k], w2[k], w3[k], w4[k]
                a00 += v0 * u0
                a10 += v1 * u0
                a20 += v2 * u0
                a30 += v3 * u0
                a01 += v0 * u1
                a11 += v1 * u1
                a21 += v2 * u1
                a31 += v3 * u1
                a02 += v0 * u2
                a12 += v1 * u2
                a22 += v2 * u2
                a32 += v3 * u2
                a03 += v0 * u3
                a13 += v1 * u3
                a23 += v2 * u3
                a33 += v3 * u3
                a04 += v0 * u4
                a14 += v1 * u4
                a24 += v2 * u4
                a34 += v3 * u4
            out[i, c], out[i, c + 1], out[i, c + 2], out[i, c + 3], out[i, c + 4] = a00, a01, a02, a03, a04
            out[i + 1, c], out[i + 1, c + 1], out[i + 1, c + 2], out[i + 1, c + 3], out[i + 1, c + 4] = (
                a10, a11, a12, a13, a14,
            )  # fmt: skip
            out[i + 2, c], out[i + 2, c + 1], out[i + 2, c + 2], out[i + 2, c + 3], out[i + 2, c + 4] = (
                a20, a21, a22, a23, a24,
            )  # fmt: skip
            out[i + 3, c], out[i + 3, c + 1], out[i + 3, c + 2], out[i + 3, c + 3], out[i + 3, c + 4] = (
                a30, a31, a32, a33, a34,
            )  # fmt: skip
        for c in range(fives, classes):
            own = w[c]
            a0 = a1 = a2 = a3 = zero
            for k in range(features):
                u = own[k]
                a0 += x0[k] * u
                a1 += x1[k] * u
                a2 += x2[k] * u
                a3 += x3[k] * u
            out[i, c], out[i + 1, c], out[i + 2, c], out[i + 3, c] = a0, a1, a2, a3


@part
def errors(out, bias, y, chosen, size, rate):
    """In place of outputs without biases: what cross entropy has for their gradient, times the rate, over the size.
    False if there is a label that is no class.
    """
    classes = len(bias)
    share = rate / out.dtype.type(size)
    for i in range(size):
        own = out[i]
        most = own[0] + bias[0]
        for c in range(classes):
            own[c] += bias[c]
            most = max(most, own[c])
        total = most - most
        for c in range(classes):
            own[c] = np.exp(own[c] - most)
            total += own[c]
        for c in range(classes):
            own[c] *= share / total
        label = y[chosen[i]]
        if not 0 <= label < classes:
            return False
        own[label] -= share
    out[size : size + 3] = 0  # what fills the last four up
    return True


@part
def summed(x, chosen, size, g, w):
    """w[c] = sum_i g[i, c] x[chosen[i]], by the same four and five."""
    classes, features = w.shape
    w[:] = 0
    for i in range(0, size, 4):
        x0, x1 = x[chosen[i]], x[chosen[min(i + 1, size - 1)]]
        x2, x3 = x[chosen[min(i + 2, size - 1)]], x[chosen[min(i + 3, size - 1)]]
        g0, g1, g2, g3 = g[i], g[i + 1], g[i + 2], g[i + 3]
        fives = classes // 5 * 5
        for c in range(0, fives, 5):
            w0, w1, w2, w3, w4 = w[c], w[c + 1], w[c + 2], w[c + 3], w[c + 4]
            g00, g01, g02, g03, g04 = g0[c], g0[c + 1], g0[c + 2], g0[c + 3], g0[c + 4]
            g10, g11, g12, g13, g14 = g1[c], g1[c + 1], g1[c + 2], g1[c + 3], g1[c + 4]
            g20, g21, g22, g23, g24 = g2[c], g2[c + 1], g2[c + 2], g2[c + 3], g2[c + 4]
            g30, g31, g32, g33, g34 = g3[c], g3[c + 1], g3[c + 2], g3[c + 3], g3[c + 4]
            for k in range(features):
                v0, v1, v2, v3 = x0[k], x1[k], x2[k], x3[k]
                w0[k] += g00 * v0 + g10 * v1 + g20 * v2 + g30 * v3
                w1[k] += g01 * v0 + g11 * v1 + g21 * v2 + g31 * v3
                w2[k] += g02 * v0 + g12 * v1 + g22 * v2 + g32 * v3
                w3[k] += g03 * v0 + g13 * v1 + g23 * v2 + g33 * v3
                w4[k] += g04 * v0 + g14 * v1 + g24 * v2 + g34 * v3
        for c in range(fives, classes):
            own, p0, p1, p2, p3 = w[c], g0[c], g1[c], g2[c], g3[c]
            for k in range(features):
                own[k] += p0 * x0[k] + p1 * x1[k] + p2 * x2[k] + p3 * x3[k]


@part
def trained(x, y, rows, n, steps, batch, seed, vector, base, layer, rate, pull, out, grad):
    """All steps of one client, in place. `rows`: where its examples lie; none: one after the other. `pull` draws the
    vector back to its base. `grad` is as long as the vector: a step is summed there and taken at once, as what is
    added to a weight in many parts is rounded as often. False if an example, a row or a label is not there.
    """
    weight, biased, classes, features = layer
    end, after = weight + classes * features, biased + classes
    w, step_of_w = vector[weight:end].reshape((classes, features)), grad[weight:end].reshape((classes, features))
    bias = vector[biased:after] if biased >= 0 else np.zeros(classes, vector.dtype)
    if not len(rows) and n > len(x):
        return False
    state, used = np.empty(624, np.uint32), 624
    order = np.empty(n, np.int64)
    each = (n + batch - 1) // batch  # steps of an epoch
    seeded(state, seed)
    for step in range(steps):
        at = step % each * batch
        if at == 0:
            used = shuffled(state, used, order, n)
            if len(rows):
                for i in range(n):
                    order[i] = rows[order[i]]
                    if not 0 <= order[i] < len(x):
                        return False
        size = min(batch, n - at)
        chosen = order[at : at + size]
        outputs(x, chosen, size, w, out)
        if not errors(out, bias, y, chosen, size, rate):
            return False
        summed(x, chosen, size, out, step_of_w)
        if biased >= 0:
            grad[biased:after] = 0
            for i in range(size):
                for c in range(classes):
                    grad[biased + c] += out[i, c]
        if pull:
            for k in range(len(vector)):
                grad[k] += rate * pull * (vector[k] - base[k])
        for k in range(len(vector)):
            vector[k] -= grad[k]
    return True


@compiled(cache=True)
def descend(told, rates, pull, batch, layer, like):
    """Every job of a table, a row each: the addresses of its examples, labels and rows (or 0), how many examples lie
    there and how many are its own, its steps, its seed, and the addresses of its vector and of its base. Returns -1, or
    the first job whose examples, rows or labels are not there.

    `layer`: where weights and biases (-1: none) begin in a vector, outputs, inputs; `like`: of the kind of the vectors.
    """
    _, biased, classes, features = layer
    length = classes * features + (classes if biased >= 0 else 0)
    out, grad = np.empty((batch + 3, classes), like.dtype), np.empty(length + LINE // like.itemsize, like.dtype)
    grad = grad[-grad.ctypes.data % LINE // like.itemsize :][:length]  # as vectors lie: within lines of memory
    none = np.empty(0, np.int64)
    for i in range(len(told)):
        there, n = told[i, 3], told[i, 4]
        x = carray(_pointer(told[i, 0], like), (there, features))
        y = carray(_pointer(told[i, 1], none), (there,))
        rows = carray(_pointer(told[i, 2], none), (n,)) if told[i, 2] else none
        vector = carray(_pointer(told[i, 7], like), (length,))
        base = carray(_pointer(told[i, 8], like), (length,))
        sound = trained(
            x, y, rows, n, told[i, 5], batch, told[i, 6], vector, base, layer,
            like.dtype.type(rates[i]), like.dtype.type(pull), out, grad,
        )  # fmt: skip
        if not sound:
            return i
    return -1
